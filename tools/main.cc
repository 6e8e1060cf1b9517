// The program `oscar`: parses the subcommand and calls it. Each subcommand is one file.

int main() { return 0; }
