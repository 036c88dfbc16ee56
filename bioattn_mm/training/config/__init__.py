"""From a config file to a config that runs, changed in place; `loading.load_config` has the order of the changes."""
