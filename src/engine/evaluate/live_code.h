// LiveCodeBench (arXiv 2403.07974), code generation, from files in the layout of its releases 1 to 6: one problem per line, whose test
// cases are either standard input and output, or arguments and result of one function. All public and private cases must pass.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "oscar/result.h"
#include "src/engine/evaluate/task_suite.h"

namespace oscar::engine {

// Fields question_content, question_id, starter_code, metadata ({"func_name": ...}), public_test_cases and private_test_cases, the last
// three JSON texts inside the JSON; private cases may be packed (src/io/packed_text.h). kCorruptData naming the field; kUnsupported for
// a packed field that holds anything but a text.
Result<TaskItem> LiveCodeBenchItem(const nlohmann::json& record);

// Runs `code` on every case, each in a sandbox of its own, and stops at the first that fails. Expected outputs never enter the
// sandbox that runs the code. Outputs are compared line by line without surrounding white space, numbers by value; results of
// functions as Python compares what JSON holds, tuples as lists. Errors of the sandbox.
Result<Grade> GradeLiveCode(const TaskItem& item, const std::string& code, const std::string& python);

}  // namespace oscar::engine
