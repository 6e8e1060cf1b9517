// The steps of `oscar eval report`: command lines of this same program, each run in a process of its own, whose JSON is kept in a
// folder. A step whose file is there is not run again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "oscar/result.h"

namespace oscar::tools {

struct ReportStep {
  std::string name, title;
  std::vector<std::string> arguments;  // behind "oscar"
  std::string result;                  // file of its standard output, "kl_prose.json"; empty: it writes its own file, `output`
  std::string output;
  double planned_seconds = 0;
};

// "oscar eval kl -m ...": to be pasted into a shell.
std::string CommandLine(const std::vector<std::string>& arguments);

nlohmann::ordered_json StepsToJson(const std::vector<ReportStep>& steps);
// kCorruptData when it is not what StepsToJson makes.
Result<std::vector<ReportStep>> StepsFromJson(const nlohmann::json& value);

// Runs what is not there yet, in order, with a line on standard error before each: its number, its title and the time that is left as
// planned. kCancelled on an interrupt, kInternal naming the step that failed.
Status RunSteps(const std::vector<ReportStep>& steps, const std::filesystem::path& folder, bool quiet);

// Runs a program with its output in a file ("": that of this process) and waits. argv[0] is looked up in PATH unless it holds a slash.
Result<int> RunProcess(const std::vector<std::string>& argv, const std::filesystem::path& output);

// kNotFound naming --python unless it runs Python.
Status CheckPython(const std::string& python);

}  // namespace oscar::tools
