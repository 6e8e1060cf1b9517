#include "tools/bench_plot.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "src/base/status_macros.h"
#include "tools/command_line.h"
#include "tools/report_page.h"
#include "tools/report_steps.h"

namespace oscar::tools {

void AddPlotOptions(CLI::App& app, PlotOptions& options) {
  CLI::Option* const plot = app.add_option("--plot", options.file, "Also draw the results by context length into this SVG file")->type_name("FILE");
  plot->check([](const std::string& file) { return std::string(file.empty() ? "the name of the file is empty" : ""); });
  app.add_option("--python", options.python, "Draws --plot, with matplotlib")->needs(plot)->capture_default_str()->type_name("PROGRAM");
}

Status CheckPlot(const PlotOptions& options) {
  if (options.file.empty()) return {};
  OSCAR_TRY(CheckOutputFile("--plot", options.file, {}));
  OSCAR_TRY(CheckPython(options.python));
  const char* const import = "import importlib.util, sys; sys.exit(importlib.util.find_spec('matplotlib') is None)";
  OSCAR_ASSIGN_OR_RETURN(const int code, RunProcess({options.python, "-c", import}, {}));
  if (code == 0) return {};
  return {StatusCode::kNotFound, "--plot: " + options.python + " has no matplotlib; --python names another Python"};
}

Status DrawPlot(const PlotOptions& options, const std::string& json) {
  if (options.file.empty()) return {};
  const std::filesystem::path report = options.file + ".json.part";
  std::ofstream(report) << json;
  const Result<int> code = RunProcess({options.python, "-c", kReportPageProgram, "--plot", report.string(), options.file}, {});
  std::error_code ignored;
  std::filesystem::remove(report, ignored);
  OSCAR_TRY(code.status());
  if (*code == 0) return {};
  return {StatusCode::kInternal, "--plot " + options.file + ": could not be drawn (exit code " + std::to_string(*code) + ")"};
}

}  // namespace oscar::tools
