/* What the tests of runtimes over doubles of their libraries share. */
#ifndef ST_TESTS_SCENARIO_H
#define ST_TESTS_SCENARIO_H

#include "runtime/device.h"

/* st_devices_open with library as the runtime's and config as STRATA_DOUBLE; tree: sysfs, or NULL for none. */
enum strata_result st_open_double(const char *runtime, const char *library, const char *config, const char *devices,
                                  const char *tree, enum st_check check, struct st_devices **set,
                                  struct strata_error *err);

/* Why a runtime could not be opened; "" when it was. */
const char *st_runtime_reason(const struct st_devices *set, const char *runtime);

/* The same for any file as its library. Returns out. */
const char *st_library_reason(const char *runtime, const char *path, char out[480]);

/* Opens the runtime's first two devices, measures, allocates, copies, launches, captures, replays, copies to the second
 * device and closes; fails the test when bytes are wrong. */
enum strata_result st_scenario(const char *runtime, const char *library, const char *config, struct strata_error *err);

#endif
