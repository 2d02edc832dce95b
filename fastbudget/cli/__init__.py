"""The command line. Each subcommand is one file; heavy imports wait until one runs."""
