/* model.h - a model that is open: its description, its weights and its program.
 *
 *     struct model *m;
 *     TRY(model_open("models/story", &(struct model_options){0}, &m, &err));
 *     m->spec->vocab_size; m->program -> backend.load, compile ...
 *     model_free(m);          // after everything that uses the program
 *
 * Opening reads headers only; weights are the mapped file. The families are in registry.c. */
#pragma once

#include "core/program.h"
#include "model/spec/spec.h"
#include "model/weights/bind.h"

struct model_options {
    enum load_format load; // LOAD_DUMMY and LOAD_PHANTOM need config.json only; a phantom can be explained, not run
    struct load_progress progress; // of making dummy weights
    const struct adapter_source {
        const char *name, *folder;
    } * adapters; // [n_adapters], which the program then has: see adapter.h
    size_t n_adapters;
    struct bound_list *taken; // filled, where it is given; see bind.h
};

struct model {
    struct model_spec *spec;
    struct checkpoint *checkpoint; // NULL for dummy weights
    struct dummy_memory *dummy;
    struct program *program;
    struct program *plain; // what it was made of, where there are adapters; else NULL
    struct arena arena;    // weights
    int64_t n_parameters;
    int64_t stored_bytes[N_STORAGES];
    int64_t n_unused_scales; // of caches and outputs in the checkpoint; see scales.h
};

/* path: a model folder or a GGUF file; without LOAD_CHECKPOINT also a config.json. Errors name the file and the tensor
 * or key. */
enum status model_open(const char *path, const struct model_options *options, struct model **out, struct error *err);
void model_free(struct model *m); // NULL is fine

/* Brings the weights of a checkpoint into memory, for a device that computes with them where they lie: those of a
 * program that is a part of the model (a stage), or with NULL all. Dummies are there. Where they are more than memory
 * has free nothing is read: they come as they are needed. */
void model_read_ahead(const struct model *m, const struct program *part, const struct load_progress *progress);

/* Then copies of those that the system keeps in small pages take their place in large ones, on a thread of its own
 * while the model computes: of large models, and where memory has room for them beside `reserved` bytes. Memory of its
 * own costs a process no more than the map does. */
struct settling;
struct settling *model_settle_begin(const struct model *m, const struct program *part, int64_t reserved);
void model_settle_wait(struct settling *s); // until all are there; NULL is fine, here and below
void model_settle_end(struct settling *s);  // leaves the rest; before the model is freed

/* Counts what a model of this description would take, without weights: parameters and bytes as stored. */
enum status model_count(const struct model_spec *spec, int64_t *n_parameters, int64_t stored_bytes[N_STORAGES],
                        struct error *err);

/* The same of what is at `path`: the tensors of GGUF files and of bitsandbytes tell their storage themselves, of others
 * the config does, as of those of bitsandbytes that are not there, or do not fit it: *fault then says which file and
 * tensor. It is left alone where there is none. */
enum status model_count_at(const char *path, const struct model_spec *spec, int64_t *n_parameters,
                           int64_t stored_bytes[N_STORAGES], struct error *fault, struct error *err);

/* ERR_IO when a weight file was cut while it was mapped. Ask before results are handed out. */
enum status model_check(const struct model *m, struct error *err);
