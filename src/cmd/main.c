/* main.c - the program's entry. Everything else is in dispatch.c, which the tests link too. */
#include "cmd/verb.h"

#include <unistd.h>

int main(int argc, char **argv)
{
    return mx_main(argc, argv, environ);
}
