"""The built-in algorithms and components: one plugin, one file, written against the public names of `relax_core`."""
