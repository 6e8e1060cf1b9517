// The other side of `oscar bench --against`: llama.cpp, found in the user's cache folder or built there, or a program that is named.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/bench/speed.h"
#include "src/engine/runtime/engine.h"

namespace CLI {
class App;
}

namespace oscar::tools {

struct PeerOptions {
  std::string against;  // empty: no peer
  std::vector<std::string> kv{"f16", "q8_0"};
};

// --against and --against-kv.
void AddPeerOptions(CLI::App& app, PeerOptions& options);

using Peers = std::vector<std::unique_ptr<engine::PeerProcess>>;

// One process per KV type, added to the request; its length and decode tokens must be known. None without --against. Where llama.cpp is asked for and not yet
// built, it is built first, which takes minutes, with progress on standard error. kFailedPrecondition when it cannot be, kCancelled on an interrupt.
Result<Peers> StartPeers(const PeerOptions& options, const engine::Engine& engine, engine::SpeedRequest& request);

}  // namespace oscar::tools
