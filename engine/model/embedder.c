/* embedder.c - see embedder.h. What the files ask for and is not computed is refused by name. */
#include "engine/model/embedder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/file.h"
#include "engine/util/json_util.h"

#define MODULES_FILE "modules.json"
#define PROMPTS_FILE "config_sentence_transformers.json"
#define TEXT_FILE    "sentence_bert_config.json"

enum { MAX_FILE_BYTES = 1 << 20, MAX_FOLDER = 80 };

const char *const pooling_names[N_POOLINGS] = {"none", "last token", "mean"};

/* What the file says, or NULL where there is none or it has a problem, which is noted. */
static json_t *read_json(int dir, const char *name, const char *pattern, bool optional,
                         struct problems *p)
{
    char path[MAX_FOLDER + 32];
    json_t *root = NULL;
    struct err e;
    size_t bytes;
    char *text;
    int rc = file_read_all(&text, &bytes, dir, name, MAX_FILE_BYTES, &e);

    if (rc == -ENOENT && optional)
        return NULL;
    if (rc == 0) {
        rc = *pattern == '{' ? json_object_parse(&root, name, text, bytes, &e)
                             : json_parse(&root, name, text, bytes, JSON_REJECT_DUPLICATES, &e);
        free(text);
    }
    if (rc == 0) {
        snprintf(path, sizeof(path), "%s: ", name);
        rc = json_match(root, pattern, path, -ENOTSUP, &e);
    }
    if (rc == 0)
        return root;
    problems_add(p, rc, "%s", e.text);
    json_decref(root);
    return NULL;
}

/* ---- the pooling module */

static enum pooling pooling_of(const char *mode)
{
    return strcmp(mode, "lasttoken") == 0                                  ? POOLING_LAST
           : strcmp(mode, "mean") == 0 || strcmp(mode, "mean_tokens") == 0 ? POOLING_MEAN
                                                                           : POOLING_NONE;
}

/* The one mode that is on: by name in newer files, as one of several flags in older ones. */
static void read_mode(struct embedder *out, const json_t *config, const char *file,
                      struct problems *p)
{
    static const char prefix[] = "pooling_mode_";
    const char *mode = json_string_value(json_object_get(config, "pooling_mode")), *key;
    int n = mode != NULL;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)config, key, v)
    {
        if (strncmp(key, prefix, strlen(prefix)) != 0)
            continue;
        if (!json_is_boolean(v) && !json_is_null(v)) {
            problems_add(p, -ENOTSUP, "%s: %.64s: is %s, not true or false", file, key,
                         json_type_name(v));
            return;
        }
        if (json_is_true(v)) {
            mode = key + strlen(prefix);
            n++;
        }
    }
    out->pooling = n == 1 ? pooling_of(mode) : POOLING_NONE;
    if (n != 1)
        problems_add(p, -ENOTSUP, "%s: exactly one pooling_mode must be on, not %d", file, n);
    else if (out->pooling == POOLING_NONE)
        problems_add(p, -ENOTSUP,
                     "%s: pooling_mode: \"%.64s\" is not supported; lasttoken and mean_tokens are",
                     file, mode);
    if (out->pooling == POOLING_MEAN && json_is_false(json_object_get(config, "include_prompt")))
        problems_add(p, -ENOTSUP, "%s: include_prompt: only true is supported with a mean", file);
}

static void read_pooling(struct embedder *out, int dir, const char *folder, int32_t hidden_dim,
                         struct problems *p)
{
    char file[MAX_FOLDER + sizeof("/config.json")];
    const json_t *dim;
    json_t *config;

    snprintf(file, sizeof(file), "%s/config.json", folder);
    config =
        read_json(dir, file,
                  "{'pooling_mode?': 'a string', 'include_prompt?': 'true or false', '...?': '*'}",
                  false, p);
    if (!config)
        return;
    read_mode(out, config, file, p);
    dim = json_object_get(config, "word_embedding_dimension");
    if (dim && !json_is_null(dim) && hidden_dim && json_integer_value(dim) != hidden_dim)
        problems_add(p, -EINVAL, "%s: word_embedding_dimension: is not hidden_size, %d", file,
                     hidden_dim);
    json_decref(config);
}

/* ---- modules */

static bool is_folder_name(const char *name)
{
    const size_t n = strlen(name);

    return n > 0 && n <= MAX_FOLDER && *name != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == n;
}

/* Whether a type is Sentence Transformers' class of that name, wherever a version has its classes:
 * sentence_transformers.models.Pooling, sentence_transformers.….modules.pooling.Pooling. */
static bool is_class(const char *type, const char *name)
{
    static const char prefix[] = "sentence_transformers.";

    return strncmp(type, prefix, strlen(prefix)) == 0 && strcmp(strrchr(type, '.') + 1, name) == 0;
}

/* The model, then the pooling, then maybe the normalization. */
static void read_modules(struct embedder *out, int dir, const json_t *modules, int32_t hidden_dim,
                         struct problems *p)
{
    static const char *const kinds[] = {"Transformer", "Pooling", "Normalize"};
    const size_t n = json_array_size(modules);

    if (n < 2 || n > 3)
        problems_add(p, -ENOTSUP,
                     MODULES_FILE ": only Transformer, Pooling and, maybe, Normalize are "
                                  "supported, not %zu modules",
                     n);
    for (size_t i = 0; i < n && i < 3; i++) {
        const json_t *module = json_array_get(modules, i);
        const char *type = json_string_value(json_object_get(module, "type"));
        const char *path = json_string_value(json_object_get(module, "path"));

        if (!is_class(type, kinds[i]))
            problems_add(p, -ENOTSUP,
                         MODULES_FILE ": [%zu].type: \"%.120s\" is not supported: it "
                                      "must be sentence_transformers.models.%s",
                         i, type, kinds[i]);
        else if (i == 0 && path && *path)
            problems_add(p, -ENOTSUP, MODULES_FILE ": [0].path: only \"\" is supported");
        else if (i == 1 && !(path && is_folder_name(path)))
            problems_add(p, -EINVAL, MODULES_FILE ": [1].path: must name a folder beside it");
        else if (i == 1)
            read_pooling(out, dir, path, hidden_dim, p);
    }
    out->normalize = n == 3;
}

static void read_prompts(struct embedder *out, int dir, struct problems *p)
{
    json_t *root = read_json(dir, PROMPTS_FILE,
                             "{'prompts?': {'...?': 'a string'},"
                             " 'default_prompt_name?': 'a string', '...?': '*'}",
                             true, p);
    json_t *prompts = json_object_get(root, "prompts"), *v;
    const char *name = json_string_value(json_object_get(root, "default_prompt_name")), *key;

    json_object_foreach(prompts, key, v)
    {
        if (name && strcmp(key, name) == 0)
            out->default_prompt = key;
    }
    if (name && !out->default_prompt)
        problems_add(p, -EINVAL, PROMPTS_FILE ": default_prompt_name: there is no prompt \"%.64s\"",
                     name);
    if (json_is_object(prompts))
        out->prompts = json_incref(prompts);
    json_decref(root);
}

/* What the model's module does with a text: nothing is computed but its tokens. */
static void check_text(int dir, struct problems *p)
{
    json_decref(read_json(dir, TEXT_FILE, "{'do_lower_case?': false, '...?': '*'}", true, p));
}

void embedder_read(struct embedder *out, int dir, int32_t hidden_dim, struct problems *p)
{
    const uint32_t before = p->n;
    json_t *modules = read_json(dir, MODULES_FILE,
                                "[{'idx?': '*', 'name?': '*', 'path?': 'a string',"
                                "  'type': 'a string', 'kwargs?': '*'}, '...']",
                                true, p);

    *out = (struct embedder){0};
    if (!modules)
        return;
    read_modules(out, dir, modules, hidden_dim, p);
    json_decref(modules);
    if (p->n > before)
        return;
    check_text(dir, p);
    read_prompts(out, dir, p);
    if (p->n == before)
        problems_say(p, "ok", MODULES_FILE ": embeddings by %s%s", pooling_names[out->pooling],
                     out->normalize ? ", of length 1" : "");
}

void embedder_deinit(struct embedder *e)
{
    json_decref(e->prompts);
    *e = (struct embedder){0};
}

bool embedder_prompt(struct text *out, const struct embedder *e, const char *name)
{
    const json_t *prompt = json_object_get(e->prompts, name ? name : e->default_prompt);

    *out = (struct text){json_string_value(prompt), json_string_length(prompt)};
    return prompt || !name;
}
