/* folder.h - the files below a folder. */
#ifndef MX_DATA_FOLDER_H
#define MX_DATA_FOLDER_H

#include "base/arena.h"
#include "base/status.h"

/* Names of all files below `dir`, relative to it, sorted; hidden ones and what is more than 8
 * folders deep are left out. Memory from the arena. */
mx_status mx_folder_files(const char *dir, mx_arena *a, char ***names, int *n) MX_MUST_USE;

/* A file that describes a dataset and holds none of it: README.md, dataset_info.json ... */
bool mx_is_dataset_card(const char *path);

/* The folder of the highest version below `dir` ("3.1.0" is above "3.0.12"), or NULL. */
const char *mx_folder_latest_version(const char *dir, mx_arena *a);

#endif
