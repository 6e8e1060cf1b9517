// `oscar eval basis`: what a transform does to K and V rows before they are encoded (method.md 2.7, 2.8 and 10): range and outliers of
// rows, how evenly energy and importance lie over the channels, the spectra, and the weighted error of the encoded rows.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "oscar/types.h"
#include "src/engine/evaluate/windows.h"

namespace oscar::engine {

// One basis on one side of one layer; means over the KV heads unless it says otherwise. y are transformed rows, less the profile's mean.
struct BasisFigures {
  int layer = 0;
  KvSide side = KvSide::kKey;
  std::string basis;              // "raw", "U", "H", "U H", or the method's name
  double bits_per_element = 0;    // of an encoded row, scale and offset included
  double range = 0;               // mean of max - min of y over its root mean square
  double largest = 0;             // largest |y| over the root mean square of all
  double energy_spread = 0;       // max over mean of the channels' E[y^2]
  double importance_spread = 0;   // max over mean of diag(A^-1 M A^-T): M = E[q^T q] for keys, sum of W_h^T W_h of the output projection
                                  // for values
  double error = 0;               // sum of e M e^T of rows as the method encodes them, over that of the rows less their mean
};

// How an eigenvalue spectrum falls: the share of the trace in the largest 1, 2, 4, ... eigenvalues, mean over the KV heads.
struct BasisSpectrum {
  int layer = 0;
  std::string of;                 // "query", "key", "value", "output": E[q^T q], covariances of K and V, sum of W_h^T W_h
  std::string basis;              // "raw" or the name of a method whose transform is not orthogonal (an orthogonal one changes no spectrum)
  double condition = 0;           // largest over smallest eigenvalue, worst head; infinite for 0 below
  std::vector<double> shares;     // of 1, 2, 4, ... d / 2
};

struct BasisReport {
  std::string model;
  int num_rows = 0;               // tokens seen per layer
  std::vector<BasisFigures> figures;   // layer, side, basis
  std::vector<BasisSpectrum> spectra;  // layer before what it is of
};

// Bases: raw, and with a head_dim that is a power of two U, H and U H, where U are the eigenvectors that int2:oscar uses, fitted on
// the same rows (keys: queries; values: softmax metric); then each method. All of every window is seen, through the exact cache.
// kUnsupported for a method that is not of the affine layout; kInvalidArgument for fewer than 8 d tokens.
Result<BasisReport> RunBasis(Engine& engine, std::span<const KvSetup> methods, std::span<const int32_t> tokens, const WindowPlan& plan,
                             const RunControl& control);

}  // namespace oscar::engine
