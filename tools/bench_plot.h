// --plot: what a `bench` command measured by context length, as an SVG figure.
#pragma once

#include <string>

#include "oscar/result.h"

namespace CLI {
class App;
}

namespace oscar::tools {

struct PlotOptions {
  std::string file;  // empty: no figure
  std::string python = "python3";
};

// --plot and --python.
void AddPlotOptions(CLI::App& app, PlotOptions& options);
// What would fail after minutes of work: where the figure goes, and a Python with matplotlib. OK without --plot.
Status CheckPlot(const PlotOptions& options);
// Draws the JSON report of the command. Does nothing without --plot.
Status DrawPlot(const PlotOptions& options, const std::string& json);

}  // namespace oscar::tools
