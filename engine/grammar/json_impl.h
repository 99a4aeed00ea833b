/* json_impl.h - what the files of the schema compiler share: json_schema.c (conjunctions, the
 * center), json_arrays.c, json_objects.c, json_rewrite.c (what can be said otherwise),
 * json_refs.c, json_nodes.c, json_numbers.c, json_formats.c, json_validate.c. */
#ifndef NVLLM_ENGINE_GRAMMAR_JSON_IMPL_H
#define NVLLM_ENGINE_GRAMMAR_JSON_IMPL_H

#include "engine/grammar/json_schema.h"

enum {
    MAX_PATH = 200,
    MAX_MEMBERS = 64,  /* of a conjunction */
    JSON_FORMATS = 13, /* that have a grammar */
};

/* A keyword that only rewritten schemas have: strings and numbers are none of those that its schema
 * allows. */
#define JSON_NONE_OF "\x01none"

/* The same: instances of these types cannot be told, because of the keyword that it names. */
#define JSON_UNKNOWN "\x01unknown"

/* The name of a type that they have: numbers that are no integers. */
#define JSON_REAL_TYPE "\x01real"

struct member {
    const json_t *schema; /* an object */
    bool closed;          /* what it adds to the conjunction has been added */
    bool chosen;          /* one of its anyOf has been */
};

/* Schemas that an instance must fulfil at once. */
struct conjunction {
    struct member members[MAX_MEMBERS];
    size_t n;
    bool fails; /* nothing fulfils it */
};

/* What a schema has been written for. */
enum json_rewriting { JSON_NOT, JSON_ONE_OF, JSON_IF, JSON_DEPENDENCIES, JSON_CHECKED_ID };

/* A schema that has been written for another. */
struct rewritten {
    const void *from;
    enum json_rewriting kind;
    json_t *to;
};

struct compiler {
    struct grammar *g;
    const json_t *root;
    bool refs_alone; /* drafts up to 7: what is beside a $ref does not count */
    bool has_id;     /* drafts up to 5, and where none is named: "id" is "$id" */
    char path[MAX_PATH];
    int code; /* negative: *e says why */
    struct err *e;
    struct memo *memos; /* [n_memos] */
    size_t n_memos, memos_cap;
    struct rewritten *rewritten; /* [n_rewritten] */
    size_t n_rewritten, rewritten_cap;
    int32_t any;  /* the rule of any value, or -1: not yet made */
    int32_t none; /* the rule of no value */
    int depth;
    size_t n_choices;              /* alternatives that have been met */
    int32_t formats[JSON_FORMATS]; /* their terms; REGEX_NONE: not yet parsed */
    int32_t ws;                    /* expressions that all use */
    int32_t open_object, close_object, open_array, close_array, comma, colon;
};

/* ---- json_schema.c */

/* Notes the first problem, at the path and a keyword of it ("": at the path itself). */
__attribute__((format(printf, 4, 5))) int json_refuse(struct compiler *c, int code,
                                                      const char *keyword, const char *fmt, ...);

/* Counts n units of work of what is not counted otherwise; too many are noted, and false. */
bool json_step(struct compiler *c, size_t n);

/* Lengthens the path; json_leave() with the result goes back. */
__attribute__((format(printf, 2, 3))) size_t json_enter(struct compiler *c, const char *fmt, ...);
void json_leave(struct compiler *c, size_t n);

/* The value of a keyword as a whole number from 0; fallback where it is absent. A value that is
 * none is noted. */
int32_t json_count(struct compiler *c, const json_t *schema, const char *keyword, int32_t fallback);

/* Notes a keyword that is not supported, or whose value, or an element of it, is of a type that it
 * cannot have. */
void json_check_keywords(struct compiler *c, const json_t *schema);

/* Notes what is no schema. */
bool json_is_schema(struct compiler *c, const json_t *schema);

/* Whether a schema's own keywords count, beside its $ref. */
bool json_counts(const struct compiler *c, const json_t *schema);

/* The rule of the conjunction of n schemas; c->none: no value is allowed. */
int32_t json_compile_all(struct compiler *c, const json_t *const *schemas, size_t n);

/* A bit for each type of JSON, integers apart from other numbers. */
enum {
    JSON_BIT_NULL = 1,
    JSON_BIT_BOOLEAN = 2,
    JSON_BIT_INTEGER = 4,
    JSON_BIT_REAL = 8, /* numbers that are no integers */
    JSON_BIT_STRING = 16,
    JSON_BIT_ARRAY = 32,
    JSON_BIT_OBJECT = 64,
    JSON_BITS = 127,
};

unsigned json_types(struct compiler *c, const json_t *schema); /* that "type" allows */

/* Notes it where instances of these types cannot be told from others: see JSON_UNKNOWN. */
void json_refuse_unknown(struct compiler *c, const json_t *schema, unsigned types);

/* ---- the others */

/* The schema that a reference leads to; NULL: there is none, which is noted. */
const json_t *json_resolve(struct compiler *c, const char *ref);

/* Whether a property is one that must be there, by its own schema, as draft 3 says it. */
bool json_is_demanded(struct compiler *c, const char *name, const json_t *property);

/* Notes it where a schema's own $id would have references in it lead elsewhere. */
void json_check_id(struct compiler *c, const json_t *schema);

/* Nodes: a text, a text of JSON, the call of a rule, the value v as it is; then next. */
int32_t node_plain(struct compiler *c, int32_t term, int32_t next);
int32_t node_word(struct compiler *c, const char *text, int32_t next);
int32_t node_string(struct compiler *c, int32_t term, int32_t next);
int32_t node_call(struct compiler *c, int32_t rule, int32_t next);
int32_t node_from(struct compiler *c, int32_t least, int32_t node); /* only from a count on */
int32_t node_empty(struct compiler *c, int32_t open, char close, int32_t next); /* [] or {} */
int32_t node_literal(struct compiler *c, const json_t *v, int32_t next);
int32_t node_any(struct compiler *c); /* the rule of any value */
void node_marks(struct compiler *c);  /* fills ws and what follows it */

int32_t json_array_node(struct compiler *c, const struct conjunction *all);
int32_t json_object_node(struct compiler *c, const struct conjunction *all);

/* Schemas that say the same as "not": schema; as the oneOf, if, or dependencies of a schema. They
 * are kept as long as the compiler. NULL: no memory, which is noted. */
const json_t *json_not(struct compiler *c, const json_t *schema);
const json_t *json_one_of(struct compiler *c, const json_t *schema);
const json_t *json_if(struct compiler *c, const json_t *schema);
const json_t *json_dependencies(struct compiler *c, const json_t *schema);
bool json_has_dependencies(const json_t *schema);

/* The schema that is kept for another, or NULL; keeps one, which may be NULL: out of memory. */
const json_t *json_kept(struct compiler *c, const void *from, enum json_rewriting kind);
const json_t *json_keep(struct compiler *c, const void *from, enum json_rewriting kind, json_t *to);

/* Lengthens the path by alternative i of a schema's anyOf, or of what this has been written for. */
size_t json_enter_alternative(struct compiler *c, const json_t *schema, size_t i);

/* The spellings of numbers of the types, of JSON_BIT_…, that all n schemas allow. */
int32_t json_numbers(struct compiler *c, const json_t *const *schemas, size_t n, unsigned types);
bool json_number_holds(struct compiler *c, const json_t *schema, const json_t *value);
int json_number_order(const json_t *a, const json_t *b); /* exactly: -1, 0, or 1 */

/* A double with the fewest digits that mean it, of which it says how many. */
int json_real_text(char *out, size_t size, double x);

/* The texts in which a pattern matches, of this keyword; REGEX_NONE: it is wrong, which is noted.
 */
int32_t json_pattern(struct compiler *c, const char *keyword, const char *pattern, size_t n);
bool json_matches(struct compiler *c, int32_t term, const char *s, size_t n); /* as a whole */

/* The strings among values. */
int32_t json_string_values(struct compiler *c, const json_t *values);

/* The texts of strings that a schema allows, enum and const apart; the names of properties that
 * its propertyNames allow. */
int32_t json_strings(struct compiler *c, const json_t *schema);
int32_t json_names(struct compiler *c, const json_t *schema);

/* json_object_get(), whose hash of a long name is counted. */
const json_t *json_member(struct compiler *c, const json_t *object, const char *name);

/* Whether a value is an instance of a schema; alone: of its keywords that hold no other schemas of
 * the same instance, and of its enum unless that is `listed`, which the value is known to be of. */
bool json_holds(struct compiler *c, const json_t *schema, const json_t *value);
bool json_holds_alone(struct compiler *c, const json_t *schema, const json_t *value,
                      const json_t *listed);
unsigned json_type_of(const json_t *value);

/* Whether values are equal, numbers by what they mean; whether one of an array is. */
bool json_same(struct compiler *c, const json_t *a, const json_t *b);
bool json_is_among(struct compiler *c, const json_t *values, const json_t *value);

#endif
