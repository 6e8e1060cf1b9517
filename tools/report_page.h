// tools/report_page.py, which draws the page of `oscar eval report`.
#pragma once

namespace oscar::tools {

extern const char* const kReportPageProgram;

}  // namespace oscar::tools
