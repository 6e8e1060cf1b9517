#include "src/engine/evaluate/sandbox.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

namespace fs = std::filesystem;

constexpr size_t kErrorTail = 4096;

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~Descriptor() { Close(); }
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

struct Pipe {
  Descriptor read_end, write_end;
};

Result<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Status(StatusCode::kIoError, std::string("sandbox: pipe: ") + std::strerror(errno));
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

// A file in memory, to be read from its start: a pipe would have to be fed while the output is read.
Result<Descriptor> MakeInput(std::string_view text) {
  Descriptor file(memfd_create("input", MFD_CLOEXEC));
  while (file.get() >= 0 && !text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno != EINTR) break;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  if (file.get() < 0 || !text.empty() || lseek(file.get(), 0, SEEK_SET) != 0) {
    return Status(StatusCode::kIoError, std::string("sandbox: input: ") + std::strerror(errno));
  }
  return file;
}

class TemporaryFolder {
 public:
  static Result<TemporaryFolder> Make() {
    std::string name = (fs::temp_directory_path() / "oscar-sandbox-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return Status(StatusCode::kIoError, name + ": " + std::strerror(errno));
    return TemporaryFolder(std::move(name));
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Result<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  while (!rest.empty()) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    const fs::path candidate = fs::path(rest.substr(0, colon)) / name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate.string();
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return Status(StatusCode::kNotFound, "sandbox: no program " + name + " in PATH");
}

// All that the child needs, made before it exists: between clone and exec only system calls are safe.
struct ChildPlan {
  std::string program, folder;
  std::vector<char*> arguments, environment;
  SandboxLimits limits;
  int input = -1, output = -1, error_output = -1, report = -1;
  int landlock = -1;  // a ruleset that allows writing below `folder` and to /dev/null
};

constexpr uint64_t kWriteAccess = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                                  LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                                  LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK |
                                  LANDLOCK_ACCESS_FS_MAKE_SYM;

Status AllowBelow(int ruleset, const std::string& path, uint64_t access) {
  const Descriptor parent(open(path.c_str(), O_PATH | O_CLOEXEC));
  landlock_path_beneath_attr rule = {};
  rule.allowed_access = access;
  rule.parent_fd = parent.get();
  if (parent.get() < 0 || syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0) {
    return {StatusCode::kUnsupported, "sandbox: Landlock does not take a rule for " + path + ": " + std::strerror(errno)};
  }
  return {};
}

Result<Descriptor> MakeLandlock(const std::string& folder) {
  landlock_ruleset_attr attributes = {};
  attributes.handled_access_fs = kWriteAccess;
  Descriptor ruleset(static_cast<int>(syscall(SYS_landlock_create_ruleset, &attributes, sizeof(attributes), 0)));
  if (ruleset.get() < 0) {
    return Status(StatusCode::kUnsupported, std::string("sandbox: this kernel does not offer Landlock, which keeps the program from "
                                                        "writing files: ") + std::strerror(errno));
  }
  OSCAR_TRY(AllowBelow(ruleset.get(), folder, kWriteAccess));
  OSCAR_TRY(AllowBelow(ruleset.get(), "/dev/null", LANDLOCK_ACCESS_FS_WRITE_FILE));
  return ruleset;
}

bool Limit(int resource, uint64_t value) {
  const rlimit limit = {value, value};
  return setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0;
}

// Never returns: ends in exec, or writes the failed step and errno to `report`.
[[noreturn]] void RunChild(const ChildPlan& plan) {
  const auto fail = [&](char step) {
    const int reason = errno;
    char message[1 + sizeof(reason)] = {step};
    std::memcpy(message + 1, &reason, sizeof(reason));
    [[maybe_unused]] const ssize_t written = write(plan.report, message, sizeof(message));
    _exit(127);
  };
  if (dup2(plan.input, 0) < 0 || dup2(plan.output, 1) < 0 || dup2(plan.error_output, 2) < 0) fail('d');
  if (chdir(plan.folder.c_str()) != 0) fail('c');
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail('p');
  if (syscall(SYS_landlock_restrict_self, plan.landlock, 0) != 0) fail('l');
  const auto seconds = static_cast<uint64_t>(plan.limits.wall_seconds) + 1;
  if (!Limit(RLIMIT_CPU, seconds) || !Limit(RLIMIT_AS, plan.limits.memory_bytes) || !Limit(RLIMIT_FSIZE, plan.limits.file_bytes) ||
      !Limit(RLIMIT_CORE, 0) || !Limit(RLIMIT_NOFILE, 64)) {
    fail('r');
  }
  execve(plan.program.c_str(), plan.arguments.data(), plan.environment.data());
  fail('e');
  _exit(127);
}

Status ChildFailure(const ChildPlan& plan, char step, int reason) {
  const std::string why = std::strerror(reason);
  switch (step) {
    case 'e': return {reason == ENOENT ? StatusCode::kNotFound : StatusCode::kIoError, "sandbox: " + plan.program + ": " + why};
    case 'l': return {StatusCode::kUnsupported, "sandbox: Landlock was refused: " + why};
    case 'p': return {StatusCode::kUnsupported, "sandbox: no_new_privs was refused: " + why};
    case 'r': return {StatusCode::kUnsupported, "sandbox: a resource limit was refused: " + why};
    default: return {StatusCode::kIoError, "sandbox: " + why};
  }
}

// Collects stdout and stderr until both are closed or a limit is met.
class OutputReader {
 public:
  OutputReader(Pipe& output, Pipe& error_output, const SandboxLimits& limits)
      : output_(std::move(output.read_end)), error_(std::move(error_output.read_end)), limits_(limits) {
    for (const Descriptor* end : {&output_, &error_}) fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }

  void Run(SandboxOutcome* outcome) {
    const auto start = std::chrono::steady_clock::now();
    while (output_.get() >= 0 || error_.get() >= 0) {
      outcome->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const double left = limits_.wall_seconds - outcome->seconds;
      if (left <= 0) {
        outcome->end = SandboxOutcome::End::kTimedOut;
        return;
      }
      // poll ignores negative descriptors.
      std::array<pollfd, 2> ends = {{{output_.get(), POLLIN, 0}, {error_.get(), POLLIN, 0}}};
      poll(ends.data(), ends.size(), static_cast<int>(left * 1000) + 1);
      if (ends[0].revents != 0) Read(output_, &outcome->output);
      if (ends[1].revents != 0) Read(error_, &outcome->error_output);
      if (outcome->output.size() > limits_.output_bytes) {
        outcome->output.resize(limits_.output_bytes);
        outcome->end = SandboxOutcome::End::kOutputTooLong;
        return;
      }
      if (outcome->error_output.size() > kErrorTail) outcome->error_output.erase(0, outcome->error_output.size() - kErrorTail);
    }
  }

 private:
  static void Read(Descriptor& from, std::string* into) {
    char buffer[65536];
    const ssize_t count = read(from.get(), buffer, sizeof(buffer));
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return from.Close();
    into->append(buffer, static_cast<size_t>(count));
  }

  Descriptor output_, error_;
  const SandboxLimits& limits_;
};

}  // namespace

Result<SandboxOutcome> RunSandboxed(const std::vector<std::string>& command, std::string_view input, const SandboxLimits& limits) {
  ChildPlan plan;
  OSCAR_ASSIGN_OR_RETURN(plan.program, FindProgram(command.at(0)));
  OSCAR_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Make());
  OSCAR_ASSIGN_OR_RETURN(const Descriptor landlock, MakeLandlock(folder.path()));
  OSCAR_ASSIGN_OR_RETURN(const Descriptor stdin_file, MakeInput(input));
  OSCAR_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  OSCAR_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  OSCAR_ASSIGN_OR_RETURN(Pipe report, MakePipe());
  std::vector<std::string> words = command;
  words[0] = plan.program;  // a Python of a virtual environment finds its packages by this path
  std::vector<std::string> variables = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + folder.path(), "TMPDIR=" + folder.path(), "LANG=C.UTF-8",
                                        "PYTHONDONTWRITEBYTECODE=1"};
  for (std::string& word : words) plan.arguments.push_back(word.data());
  for (std::string& variable : variables) plan.environment.push_back(variable.data());
  plan.arguments.push_back(nullptr);
  plan.environment.push_back(nullptr);
  plan.folder = folder.path();
  plan.limits = limits;
  plan.landlock = landlock.get();
  plan.input = stdin_file.get();
  plan.output = out.write_end.get();
  plan.error_output = err.write_end.get();
  plan.report = report.write_end.get();
  // As process 1 of its own PID namespace: when it is killed, the kernel kills all that it started.
  const auto child = static_cast<pid_t>(
      syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child == 0) RunChild(plan);
  if (child < 0) {
    return Status(StatusCode::kUnsupported, std::string("sandbox: this system does not allow a process without network (user and network "
                                                        "namespaces): ") + std::strerror(errno));
  }
  out.write_end.Close();
  err.write_end.Close();
  report.write_end.Close();
  SandboxOutcome outcome;
  OutputReader(out, err, limits).Run(&outcome);
  const bool ended_early = outcome.end != SandboxOutcome::End::kExited;
  if (ended_early) kill(child, SIGKILL);
  int status = 0;
  // It has closed its output; give it no more time than is left before it is killed.
  for (const auto start = std::chrono::steady_clock::now(); waitpid(child, &status, WNOHANG) == 0;) {
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (outcome.seconds + waited > limits.wall_seconds) {
      outcome.end = SandboxOutcome::End::kTimedOut;
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    poll(nullptr, 0, 1);
  }
  char message[1 + sizeof(int)];
  if (read(report.read_end.get(), message, sizeof(message)) == static_cast<ssize_t>(sizeof(message))) {
    int reason = 0;
    std::memcpy(&reason, message + 1, sizeof(reason));
    return ChildFailure(plan, message[0], reason);
  }
  if (ended_early || outcome.end == SandboxOutcome::End::kTimedOut) return outcome;
  outcome.end = WIFSIGNALED(status) ? SandboxOutcome::End::kSignalled : SandboxOutcome::End::kExited;
  outcome.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

}  // namespace oscar::engine
