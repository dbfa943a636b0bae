"""A plugin package from the template, which is the folder `cookiecutter-algorithm`."""
