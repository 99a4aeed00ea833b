/* no_backend.c - a library that is no backend of nvllm. */
extern int nothing_of_ours;

__attribute__((visibility("default"))) int nothing_of_ours = 1;
