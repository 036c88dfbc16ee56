"""From a config to its Runner, without a command line: own data, miniature runs, classes, schedule, shards."""
