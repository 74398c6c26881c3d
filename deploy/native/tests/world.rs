//! A world of two regions, made by the built program, running tiny programs. Needs the right to make namespaces, and says so.

#![allow(clippy::unwrap_used)]

use native::control::{Client, Request, Response, StateDir, WorldFile};
use native::world::{ExitStatus, KillMode, ProcessSpec, ProcessState, ProcessStatus, Selection};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const NATIVE: &str = env!("CARGO_BIN_EXE_native");
const READY_DEADLINE: Duration = Duration::from_secs(20);
/// The standard world's delay between its first two regions.
const ONE_WAY: Duration = Duration::from_millis(45);
const JITTER: Duration = Duration::from_millis(2);

/// A world that lives as long as this value: its command is a program that waits.
struct TestWorld {
    dir: tempfile::TempDir,
    launcher: Child,
    marker: String,
}

impl TestWorld {
    fn open(test: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let marker = format!("marker-{test}-{}", std::process::id());
        let log = std::fs::File::create(dir.path().join("launcher.log")).unwrap();
        let launcher = Command::new(NATIVE)
            .args(["--dir"])
            .arg(dir.path().join("state"))
            .args(["run", "--bare", "--regions", "2", "--", "python3", "-c", "import time; time.sleep(600)", &marker])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut world = Self { dir, launcher, marker };
        let ready = eventually(READY_DEADLINE, || {
            let ended = world.launcher.try_wait().unwrap();
            assert!(ended.is_none(), "no world, so nothing here can be tested; the launcher says:\n{}", world.log());
            world.client().is_some_and(|client| client.call(&Request::WaitReady).is_ok()) && processes_with(&world.marker) > 0
        });
        assert!(ready, "the world is not ready; the launcher says:\n{}", world.log());
        world
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("launcher.log")).unwrap_or_default()
    }

    fn state(&self) -> StateDir {
        StateDir::at(&self.dir.path().join("state")).unwrap()
    }

    fn client(&self) -> Option<Client> {
        Client::of(&self.state()).ok()
    }

    fn ask(&self, request: &Request) -> Response {
        self.client().expect("the world listens").call(request).unwrap_or_else(|error| panic!("{request:?}: {error:#}"))
    }

    fn native(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(NATIVE);
        command.arg("--dir").arg(self.dir.path().join("state")).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.native(arguments).output().unwrap()
    }

    /// Runs a Python program inside a region until it ends.
    fn python(&self, region: &str, program: &str) -> Output {
        self.run(&["exec", region, "--", "python3", "-c", program])
    }

    /// A server in a region that sends back what it gets, on a port; lives until the world or the region ends.
    fn echo_server(&self, region: &str, port: u16) -> Child {
        let program = format!(
            "import socketserver\n\
             class Echo(socketserver.BaseRequestHandler):\n\
             \tdef handle(self):\n\
             \t\twhile data := self.request.recv(65536): self.request.sendall(data)\n\
             socketserver.ThreadingTCPServer.allow_reuse_address = True\n\
             socketserver.ThreadingTCPServer(('0.0.0.0', {port}), Echo).serve_forever()"
        );
        let server = self.native(&["exec", region, "--", "python3", "-c", &program, &self.marker]).spawn().unwrap();
        let host = self.expose(region, port);
        assert!(eventually(READY_DEADLINE, || answers(host)), "the server does not answer");
        server
    }

    fn expose(&self, region: &str, port: u16) -> SocketAddr {
        let Response::Exposed { address } = self.ask(&Request::Expose { region: region.into(), port }) else { panic!("not exposed") };
        address
    }
}

impl Drop for TestWorld {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

fn eventually(deadline: Duration, mut wanted: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < deadline {
        if wanted() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

fn answers(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut answer = [0; 2];
    stream.write_all(b"hi").is_ok() && stream.read_exact(&mut answer).is_ok()
}

/// Processes of this machine that have this word among their arguments, without corpses.
fn processes_with(word: &str) -> usize {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| entry.file_name().to_string_lossy().parse::<i32>().is_ok());
    let has = |path: &Path| {
        let arguments = std::fs::read(path.join("cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| String::from_utf8_lossy(argument).contains(word))
    };
    numbers.filter(|entry| has(&entry.path())).count()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Connects from a region to another, sends one byte a time, prints the seconds of each answer or the kind of failure.
fn pinger(address: &str, port: u16, times: u32, timeout: f64) -> String {
    format!(
        "import socket, time\n\
         s = socket.create_connection(('{address}', {port}), timeout={timeout})\n\
         s.settimeout({timeout}); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n\
         for _ in range({times}):\n\
         \tbegan = time.monotonic(); s.sendall(b'x'); s.recv(1); print(time.monotonic() - began)"
    )
}

#[test]
fn delay_cut_and_heal() {
    let world = TestWorld::open("cut");
    let mut server = world.echo_server("iad", 7000);

    let output = world.python("fra", &pinger("iad", 7000, 20, 5.0));
    let seconds: Vec<f64> = text(&output).lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{}", text(&output)))).collect();
    let least = seconds.iter().copied().fold(f64::MAX, f64::min);
    let (floor, ceiling) = (2 * (ONE_WAY - JITTER), 2 * (ONE_WAY + JITTER) + Duration::from_millis(60));
    assert!(seconds.len() == 20 && least >= floor.as_secs_f64() && least <= ceiling.as_secs_f64(), "round trips {seconds:?}");

    assert!(world.run(&["cut", "fra", "iad"]).status.success());
    let output = world.python("fra", &pinger("iad", 7000, 1, 1.0));
    assert!(!output.status.success() && text(&output).contains("timed out"), "a cut link answers: {}", text(&output));
    assert!(answers(world.expose("iad", 7000)), "the region itself is not cut off from the host");

    assert!(world.run(&["heal"]).status.success());
    let output = world.python("fra", &pinger("iad", 7000, 1, 5.0));
    assert!(output.status.success(), "healed: {}", text(&output));

    let links = world.client().unwrap().links().unwrap();
    let blackholed: u64 = links.links.iter().map(|link| link.counters.blackholed).sum();
    assert!(blackholed > 0 && links.lateness.packets > 40, "{links:?}");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_one_way_cut_and_new_settings() {
    let world = TestWorld::open("oneway");
    let mut server = world.echo_server("iad", 7000);
    assert!(world.run(&["link", "fra", "iad", "--latency", "100ms", "--jitter", "0ms"]).status.success());
    let output = world.python("fra", &pinger("iad", 7000, 5, 5.0));
    let least = text(&output).lines().map(|line| line.parse::<f64>().unwrap()).fold(f64::MAX, f64::min);
    assert!((0.2..0.26).contains(&least), "round trip of {least} s over 2 × 100 ms");

    world.ask(&Request::Cut(Selection { from: "iad".into(), to: "fra".into(), one_way: true }));
    let output = world.python("fra", &pinger("iad", 7000, 1, 1.0));
    assert!(text(&output).contains("timed out"), "{}", text(&output));
    let links = world.client().unwrap().links().unwrap().links;
    let blackholed = |from: &str| links.iter().find(|link| link.from == from).unwrap().counters.blackholed;
    assert!(blackholed("iad") > 0 && blackholed("fra") == 0, "{links:?}");
    server.kill().unwrap();
    server.wait().unwrap();
}

/// What a peer in fra sees when iad is killed: it prints `reset`, or `silence` after two seconds.
const WITNESS: &str = "import socket\n\
    s = socket.create_connection(('iad', 7000), timeout=5); s.sendall(b'x'); s.recv(1); print('joined', flush=True)\n\
    s.settimeout(2)\n\
    try: print('reset' if s.recv(1) == b'' else 'data')\n\
    except socket.timeout: print('silence')\n\
    except ConnectionResetError: print('reset')";

fn seen_by_a_peer(world: &TestWorld, mode: KillMode) -> String {
    let mut server = world.echo_server("iad", 7000);
    let mut peer = world.native(&["exec", "fra", "--", "python3", "-c", WITNESS]).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = peer.stdout.take().unwrap();
    let mut joined = [0; 7];
    output.read_exact(&mut joined).unwrap();
    world.client().unwrap().kill("iad", mode).unwrap();
    let mut seen = String::new();
    output.read_to_string(&mut seen).unwrap();
    peer.wait().unwrap();
    server.wait().unwrap();
    seen.trim().into()
}

#[test]
fn a_crash_resets_and_a_power_loss_is_silent() {
    let world = TestWorld::open("kill");
    assert_eq!(seen_by_a_peer(&world, KillMode::Crash), "reset");
    assert!(!world.client().unwrap().status().unwrap().regions[1].up);
    let output = world.run(&["exec", "iad", "--", "true"]);
    assert!(!output.status.success() && text(&output).contains("down"), "{}", text(&output));
    world.client().unwrap().start("iad", true).unwrap();
    // Without delay: nothing that a dying region still says is in flight when the router lets go of it.
    assert!(world.run(&["link", "fra", "iad", "--latency", "0ms", "--jitter", "0ms"]).status.success());
    assert_eq!(seen_by_a_peer(&world, KillMode::Blackhole), "silence");
    world.client().unwrap().start("iad", true).unwrap();
    let mut server = world.echo_server("iad", 7000);
    assert!(world.python("fra", &pinger("iad", 7000, 1, 5.0)).status.success(), "back after a power loss");
    assert!(answers(world.expose("iad", 7000)));
    server.kill().unwrap();
    server.wait().unwrap();
}

fn process<'a>(status: &'a [ProcessStatus], name: &str) -> &'a ProcessStatus {
    status.iter().find(|process| process.name == name).unwrap_or_else(|| panic!("no {name} in {status:?}"))
}

#[test]
fn named_processes_are_started_paused_killed_and_logged() {
    let world = TestWorld::open("named");
    let program = "import os, time\nprint(os.environ['WORD'], os.getcwd(), flush=True)\nwhile True:\n\tprint(time.monotonic(), flush=True); sum(range(200000))";
    let argv = ["python3", "-c", program, &world.marker].map(String::from).to_vec();
    let spec = ProcessSpec { name: "busy".into(), argv, env: vec![("WORD".into(), "hello".into())], cwd: Some("/usr".into()) };
    let fra = || world.client().unwrap().status().unwrap().regions[0].processes.clone();
    let log = || std::fs::read_to_string(world.dir.path().join("state/run/fra/logs/busy.log")).unwrap();
    let busy = || process(&fra(), "busy").clone();

    world.ask(&Request::Spawn { region: "fra".into(), process: spec.clone() });
    assert!(world.client().unwrap().call(&Request::Spawn { region: "fra".into(), process: spec }).is_err(), "a name runs once");
    assert!(eventually(READY_DEADLINE, || log().starts_with("hello /usr\n")), "{}", log());
    assert!(eventually(READY_DEADLINE, || busy().cpu_seconds > 0.1 && busy().rss_bytes > 1 << 20), "{:?}", busy());
    assert!(text(&world.run(&["logs", "fra", "busy", "-n", "1"])).lines().count() == 1);

    assert!(world.run(&["pause", "fra", "busy"]).status.success());
    assert_eq!(busy().state, ProcessState::Paused);
    std::thread::sleep(Duration::from_millis(100));
    let (paused, before) = (log().len(), busy().cpu_seconds);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((log().len(), busy().cpu_seconds), (paused, before), "a paused process goes on");
    assert!(world.run(&["resume", "fra"]).status.success());
    assert!(eventually(READY_DEADLINE, || log().len() > paused), "a resumed process does not go on");

    let used = busy().cpu_seconds;
    assert!(world.run(&["kill-process", "fra", "busy"]).status.success());
    assert_eq!(busy().state, ProcessState::Exited { status: ExitStatus::KILLED });
    assert!(!world.run(&["kill-process", "fra", "busy"]).status.success(), "it is dead");
    assert!(world.run(&["start-process", "fra", "busy"]).status.success());
    let again = busy();
    assert!(again.starts == 2 && again.state == ProcessState::Running && again.cpu_seconds >= used, "{again:?}");
    let older = std::fs::read_to_string(world.dir.path().join("state/run/fra/logs/busy.1.log")).unwrap();
    assert!(older.starts_with("hello /usr\n"));

    let missing = ProcessSpec { name: "missing".into(), argv: vec!["no-such-program".into()], ..ProcessSpec::default() };
    let error = world.client().unwrap().call(&Request::Spawn { region: "fra".into(), process: missing }).unwrap_err();
    assert!(format!("{error:#}").contains("no-such-program"), "{error:#}");
    world.client().unwrap().kill("fra", KillMode::Crash).unwrap();
    assert!(busy().state == ProcessState::Exited { status: ExitStatus::KILLED } && busy().pid.is_none(), "{:?}", busy());
}

#[test]
fn exec_passes_exit_code_stdio_and_place() {
    let world = TestWorld::open("exec");
    assert_eq!(world.run(&["exec", "fra", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(world.run(&["exec", "fra", "--", "sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    assert!(text(&world.run(&["exec", "iad", "--", "hostname"])).starts_with("iad"));
    let mut shell = world.native(&["exec", "fra", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(shell.wait_with_output().unwrap().stdout, b"through");
    let missing = world.run(&["exec", "fra", "--", "no-such-program"]);
    assert!(!missing.status.success() && text(&missing).contains("no-such-program"));
    let nowhere = world.run(&["exec", "moon", "--", "true"]);
    assert!(text(&nowhere).contains("no region moon; there are fra, iad"), "{}", text(&nowhere));
    // No way out of the world, at once.
    let program = "import socket\ntry: socket.create_connection(('192.0.2.1', 80), timeout=5)\nexcept OSError as error: print(error.errno)";
    assert_eq!(text(&world.python("fra", program)).trim(), nix::libc::ENETUNREACH.to_string());
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let mut world = TestWorld::open("nothing");
    // Stubborn ones: in a session of its own, deaf to polite signals; on the host and inside a region.
    let stubborn = "import os, signal, sys, time\n\
        if os.fork(): time.sleep(600)\n\
        os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)\n\
        if os.fork(): os._exit(0)\n\
        time.sleep(600)";
    let mut inside = world.native(&["exec", "fra", "--", "python3", "-c", stubborn, &world.marker]).spawn().unwrap();
    assert!(eventually(READY_DEADLINE, || processes_with(&world.marker) >= 5), "{} processes", processes_with(&world.marker));
    world.launcher.kill().unwrap();
    world.launcher.wait().unwrap();
    assert!(
        eventually(Duration::from_secs(5), || processes_with(&world.marker) == 0),
        "{} processes are left",
        processes_with(&world.marker)
    );
    assert!(!inside.wait().unwrap().success());
    assert!(eventually(Duration::from_secs(5), || processes_with(&world.dir.path().display().to_string()) == 0), "a stage is left");
    assert_eq!(world.state().holder(), None, "the state folder is free");
}

#[test]
fn an_interrupted_run_ends_in_order() {
    let mut world = TestWorld::open("interrupted");
    let second = world.run(&["run", "--bare", "--", "true"]);
    assert!(!second.status.success() && text(&second).contains("native down"), "{}", text(&second));
    assert!(WorldFile::read(&world.state().world_file()).unwrap().regions.len() == 2);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(world.launcher.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(world.launcher.wait().unwrap().code(), Some(130), "{}", world.log());
    assert_eq!(processes_with(&world.marker), 0);
    assert!(!world.state().world_file().exists() && !world.state().socket().exists());
}

#[test]
fn up_status_down_in_the_background() {
    let dir = tempfile::tempdir().unwrap();
    let native = |arguments: &[&str]| Command::new(NATIVE).arg("--dir").arg(dir.path()).args(arguments).output().unwrap();
    let up = native(&["up", "--bare", "--regions", "2"]);
    assert!(up.status.success() && text(&up).contains("world ready"), "no world in the background:\n{}", text(&up));
    let status = Client::of(&StateDir::at(dir.path()).unwrap()).unwrap().status().unwrap();
    assert!(status.regions.iter().all(|region| region.up && region.processes.iter().all(|process| process.state == ProcessState::Running)));
    assert!(native(&["status"]).status.success());
    let again = native(&["up", "--bare"]);
    assert!(text(&again).contains("is up already"), "{}", text(&again));
    assert!(native(&["down"]).status.success());
    assert_eq!(processes_with(&dir.path().display().to_string()), 0);
    assert!(text(&native(&["status"])).contains("no world is up"));
}
