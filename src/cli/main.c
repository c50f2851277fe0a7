/* strata: the command line. Finds the subcommand and hands the rest of the arguments to it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "strata.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

/* The status of a command whose output may still be in a buffer. */
static int finish(int status)
{
    if ((fflush(stdout) || ferror(stdout)) && status == ST_EXIT_OK)
        return st_user_error("standard output: cannot write");
    return status;
}

/* The last entry ends the list. */
static const struct command commands[] = {
    {"run", st_cmd_run, "answer one prompt"},
    {"chat", st_cmd_chat, "a conversation in the terminal"},
    {"serve", st_cmd_serve, "HTTP APIs and a page in the browser"},
    {"tokenize", st_cmd_tokenize, "text to token ids and back"},
    {"logits", st_cmd_logits, "logits and residuals of given tokens, as a file"},
    {"perplexity", st_cmd_perplexity, "how well a model predicts a text, and KL against a saved base"},
    {"bench", st_cmd_bench, "tokens per second"},
    {"plan", st_cmd_plan, "where a model would lie, how much memory it takes, how fast it would be"},
    {"profile", st_cmd_profile, "which experts a text chooses, for models larger than the cards"},
    {"convert", st_cmd_convert, "a Hugging Face model folder to GGUF"},
    {"quantize", st_cmd_quantize, "a GGUF file with other tensor types"},
    {"devices", st_cmd_devices, "devices of this machine, which are used and why"},
    {"synth", st_cmd_synth, "a model of the real shape with random weights"},
    {"inspect", st_cmd_inspect, "keys, tensors and types of a GGUF file"},
    {NULL, NULL, NULL},
};

static void print_help(void)
{
    printf("strata %s: runs large mixture-of-experts language models\n\nusage: strata COMMAND [options]\n\ncommands:\n",
           strata_version());
    for (const struct command *c = commands; c->name; c++)
        printf("  %-12s %s\n", c->name, c->summary);
    printf("\n  strata COMMAND --help    options of a command, with their environment variables\n"
           "  strata --version         version, commit and compiler\n\n"
           "exit codes: 0 done, 1 a mistake in the call or a file that cannot be read or written, 2 the model is damaged or\n"
           "not supported, 3 a device, memory or the engine failed\n");
}

int main(int argc, char **argv)
{
    /* A reader that went away is seen as a failed write, not as a killed program. */
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_help();
        return ST_EXIT_USER;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        return finish(ST_EXIT_OK);
    }
    if (strcmp(name, "--version") == 0) {
        printf("strata %s (%s)\n", strata_version(), strata_build());
        return finish(ST_EXIT_OK);
    }
    if (strcmp(name, ST_ENGINE_PROCESS) == 0)
        return st_cmd_engine_process(argc - 1, argv + 1);
    for (const struct command *c = commands; c->name; c++)
        if (strcmp(name, c->name) == 0)
            return finish(c->run(argc - 1, argv + 1));
    const char *near = st_nearest(name, commands, ST_COUNT(commands), sizeof *commands);
    if (near)
        return st_user_error("unknown command \"%s\"; did you mean \"%s\"?", name, near);
    return st_user_error("unknown command \"%s\"; \"strata --help\" lists them", name);
}
