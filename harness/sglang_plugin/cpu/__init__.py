"""A real SGLang on a CPU, for functional tests: the environment's recipe (install.sh) and the attention it lacks."""
