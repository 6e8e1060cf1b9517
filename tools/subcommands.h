// One entry per subcommand: adds itself to the parser; the callback that it sets stores the exit code.
#pragma once

namespace CLI {
class App;
}

namespace oscar::tools {

void AddRunCommand(CLI::App& app, int& exit_code);
void AddServeCommand(CLI::App& app, int& exit_code);
void AddCalibrateCommand(CLI::App& app, int& exit_code);
void AddEvalCommand(CLI::App& app, int& exit_code);
void AddEvalNeedleCommand(CLI::App& eval, int& exit_code);  // below `eval`
void AddEvalTasksCommand(CLI::App& eval, int& exit_code);
void AddEvalErrorChainCommand(CLI::App& eval, int& exit_code);
void AddEvalBasisCommand(CLI::App& eval, int& exit_code);
void AddEvalAblationCommand(CLI::App& eval, int& exit_code);
void AddEvalReportCommand(CLI::App& eval, int& exit_code);
void AddBenchCommand(CLI::App& app, int& exit_code);
void AddBenchKernelCommands(CLI::App& bench, int& exit_code);  // below `bench`
void AddBenchLoadCommands(CLI::App& bench, int& exit_code);    // below `bench`
void AddInspectCommand(CLI::App& app, int& exit_code);
void AddRotationsCommand(CLI::App& app, int& exit_code);
void AddPullCommand(CLI::App& app, int& exit_code);

}  // namespace oscar::tools
