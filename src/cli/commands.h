/* The subcommands: each in src/cli/cmd_<name>.c, listed once in main.c. argv[0] is the subcommand's name; the result is
 * the exit code (enum st_exit). */
#ifndef ST_CLI_COMMANDS_H
#define ST_CLI_COMMANDS_H

int st_cmd_run(int argc, char **argv);
int st_cmd_chat(int argc, char **argv);
int st_cmd_tokenize(int argc, char **argv);
int st_cmd_logits(int argc, char **argv);
int st_cmd_perplexity(int argc, char **argv);
int st_cmd_bench(int argc, char **argv);
int st_cmd_convert(int argc, char **argv);
int st_cmd_devices(int argc, char **argv);
int st_cmd_inspect(int argc, char **argv);
int st_cmd_plan(int argc, char **argv);
int st_cmd_profile(int argc, char **argv);
int st_cmd_quantize(int argc, char **argv);
int st_cmd_serve(int argc, char **argv);
/* The command that serve starts, with its own arguments: the process that holds the engine. Not for people. */
#define ST_ENGINE_PROCESS "engine-process"
int st_cmd_engine_process(int argc, char **argv);
int st_cmd_synth(int argc, char **argv);

#endif
