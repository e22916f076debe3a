/* gguf_find.h - which GGUF file a path means, and the other files of a model that is split. */
#pragma once

#include "base/folder.h"

/* The file with the metadata of the model at `path`, which is
 *   a file that is GGUF by its name or its first bytes: itself, or the first one when it is NAME-00002-of-00003.gguf
 *   a folder without safetensors: the one model in it; files called mmproj* (of towers of images and sound) are not
 *                                 counted. Several are refused by name, since they may be any models.
 * *found is false, and out untouched, for anything else. */
enum status gguf_find_model(const char *path, char out[FOLDER_PATH_BYTES], bool *found, struct error *err);

/* The path of file `number` of the split that `first` begins, through folder_file. */
enum status gguf_part_path(const char *first, int number, char out[FOLDER_PATH_BYTES], struct error *err);
