/* strata: the command line. Finds the subcommand and hands the rest of the arguments to it. */
#include <stdio.h>

#include "strata.h"

int main(void)
{
    printf("strata\n");
    return 0;
}
