//! `softhca bench`: measures how fast softhca is on this host or between two hosts, with its own
//! load.
//!
//! The crate `bench` is the load. This module has the options and the output, and starts the other
//! side: a process of this program, or a process on another host that is reached by TCP. The
//! principal function is [`run`].

mod busy;
pub(crate) mod options;

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bench::{Case, Error, Place, Plan, Size, Talk, chart, svg};
use plot::Heading;
use serde_json::json;
use softhca::Context;

use crate::failure::{self, Failure};
use crate::place::Host;
use crate::start;
use engine::reason::say;

use busy::Load;
use options::Options;

/// How long another host may take to answer first.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the other process may take to exit.
const FAREWELL: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(2);

/// Measures, or acts as the other side.
pub(crate) fn run(options: &Options, host: &Host) -> Result<String, Failure> {
    if options.child {
        return child(options, host);
    }
    let plan = if options.serve {
        None
    } else {
        let cannot = |why| Failure::of_options(format!("{why}; see `softhca bench --help`"));
        Some(options.plan().map_err(cannot)?)
    };
    let run_dir = host.run_dir();
    // The connection is kept until the end. While it exists, an agent does not exit as idle.
    let _agent = start::ensure(host, &run_dir, start::Wanted::default())?;
    let context = open(&run_dir, options)?;
    let Some(plan) = plan else { return serve(&context, options, host) };
    let before = Load::now();
    let cases = match &options.to {
        Some(to) => ask_host(&context, options, &plan, to)?,
        None => ask_process(&context, options, &plan, &run_dir)?,
    };
    let busy = Load::others(before, Load::now());
    if let Some(others) = busy.filter(|others| *others >= busy::BUSY) {
        say(format_args!(
            "other programs used {others:.1} processors during the measurement; measure again on an idle machine"
        ));
    }
    if let Some(file) = &options.plot {
        let title = format!("{} {}, softhca {}", plan.operation, plan.measure, env!("CARGO_PKG_VERSION"));
        let caption = caption(&plan, options.to.as_deref(), busy);
        let svg = svg::of_run(&Heading { title: &title, caption: &caption }, &plan, &cases)?;
        std::fs::write(file, svg).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if options.json {
        let busy = busy.map(|others| others >= busy::BUSY);
        let (version, to) = (env!("CARGO_PKG_VERSION"), &options.to);
        let all = json!({ "softhca": version, "plan": plan, "to": to, "cases": cases, "busy": busy });
        return Ok(crate::json::object(all)?);
    }
    let chart = chart::bars(&plan, &cases);
    Ok(format!("{}\n{}\n{chart}", heading(&plan, options.to.as_deref()), chart::table(&plan, &cases)))
}

fn heading(plan: &Plan, to: Option<&str>) -> String {
    let queues = match (plan.qps, plan.threads) {
        (1, _) => String::new(),
        (qps, 1) => format!(", {qps} queue pairs"),
        (qps, threads) => format!(", {qps} queue pairs, {threads} threads"),
    };
    let waits = if plan.event { ", sleeping" } else { "" };
    let checked = if plan.verify { ", contents checked" } else { "" };
    let to = to.map_or_else(|| "two processes on this host".to_owned(), |to| format!("to {to}"));
    format!("{} {}{queues}{waits}{checked}: {to}", plan.operation, plan.measure)
}

/// The caption of a plot: where, when and how it was made.
fn caption(plan: &Plan, to: Option<&str>, busy: Option<f64>) -> [String; 2] {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = capture::words::date(u64::try_from(now.as_nanos()).unwrap_or_default());
    // Cut off the seconds.
    let date = date.get(..16).unwrap_or(&date);
    let to = to.map_or_else(|| "two processes of one host".to_owned(), |to| format!("to {to}"));
    let others = busy.filter(|others| *others >= busy::BUSY);
    let others = others.map_or_else(String::new, |others| format!("; other programs used {others:.1} processors"));
    [format!("host {}, {date} UTC, {to}{others}", name.trim()), plan.parameters()]
}

/// The device that is measured.
fn open(run_dir: &Path, options: &Options) -> Result<Context, String> {
    let devices = softhca::devices_in(run_dir);
    let wanted = |device: &&softhca::Device| options.device.as_deref().is_none_or(|name| device.name() == name);
    let device = devices.iter().find(wanted).ok_or_else(|| {
        let names: Vec<&str> = devices.iter().map(softhca::Device::name).collect();
        format!("unknown device {}; the devices are {names:?}", options.device.as_deref().unwrap_or_default())
    })?;
    device.open().map_err(|error| error.to_string())
}

fn place(options: &Options) -> Place {
    Place { port: 1, gid_index: options.gid_index }
}

/// Prints the progress on a terminal.
fn progress(plan: &Plan) -> impl FnMut(usize, &Case) {
    let (sizes, operation) = (plan.sizes.clone(), plan.operation);
    let shown = sizes.len() > 1 && std::io::stderr().is_terminal();
    move |number, case| {
        if shown {
            let end = if number + 1 == sizes.len() { "\r\x1b[K" } else { "" };
            let done = number + 1;
            let text = format!("\r\x1b[K{operation}, {}: {done} of {} sizes{end}", Size(case.size), sizes.len());
            failure::tell(&text);
        }
    }
}

/// The other side is another process of this program.
fn ask_process(context: &Context, options: &Options, plan: &Plan, run_dir: &Path) -> Result<Vec<Case>, String> {
    let (here, there) = UnixStream::pair().map_err(|error| format!("sockets: {error}"))?;
    let program = std::env::current_exe().map_err(|error| format!("cannot find the softhca executable: {error}"))?;
    let mut command = Command::new(program);
    command.args(["bench", "--child"]).env(engine::rundir::VARIABLE, run_dir);
    command.args(options.device.iter().flat_map(|name| ["--device", name]));
    command.args(options.gid_index.map(|index| format!("--gid-index={index}")));
    let child = command.stdin(Stdio::from(OwnedFd::from(there))).stdout(Stdio::null()).spawn();
    // Close this process's copy of the child's socket, so that the end of the child is noticed.
    drop(command);
    let mut child = Other(child.map_err(|error| format!("cannot start the second process: {error}"))?);
    let talk = Talk::unix(here).map_err(|error| error.to_string())?;
    match bench::ask(context, &place(options), talk, plan, progress(plan)) {
        Ok(cases) => {
            child.wait();
            Ok(cases)
        }
        Err(why @ (Error::Gone | Error::Verbs(_))) => match child.wait() {
            Some(status) if !status.success() => Err(format!("{why}: {}", ended(&child.0, status))),
            _ => Err(why.to_string()),
        },
        Err(why) => Err(why.to_string()),
    }
}

fn ended(child: &Child, status: ExitStatus) -> String {
    let how = match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, code) => format!("exited with {}", code.unwrap_or(-1)),
    };
    format!("process {} {how}", child.id())
}

/// The other side's process. It ends when this value is dropped.
struct Other(Child);

impl Other {
    /// The exit status, if the process exits within [`FAREWELL`].
    fn wait(&mut self) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < FAREWELL {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Some(status);
            }
            std::thread::sleep(GLANCE);
        }
        None
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Acts as the other side for [`ask_process`].
fn child(options: &Options, host: &Host) -> Result<String, Failure> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let talk = Talk::unix(UnixStream::from(socket))?;
    let context = open(&host.run_dir(), options)?;
    match bench::answer(&context, &place(options), talk) {
        // The process that started this one prints the error. Its end needs no message.
        Err(Error::Other(_) | Error::Gone) => Err(Failure::from("")),
        Err(why) => Err(why.into()),
        Ok(_) => Ok(String::new()),
    }
}

/// The other side is a process on another host.
fn ask_host(context: &Context, options: &Options, plan: &Plan, to: &str) -> Result<Vec<Case>, String> {
    let addresses = options.destination(to)?;
    let mut refused = format!("--to {to}: the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                let place = place(options).of(context, local(&stream)?);
                let talk = Talk::tcp(stream).map_err(|error| error.to_string())?;
                return bench::ask(context, &place, talk, plan, progress(plan)).map_err(|why| why.to_string());
            }
            Err(error) => {
                refused = format!("{address}: {error}; is `softhca bench --serve` running there?");
            }
        }
    }
    Err(refused)
}

fn local(stream: &TcpStream) -> Result<IpAddr, String> {
    let address = stream.local_addr().map_err(|error| error.to_string())?.ip();
    Ok(address.to_canonical())
}

/// Serves other hosts, one after the other.
fn serve(context: &Context, options: &Options, host: &Host) -> Result<String, Failure> {
    let address =
        SocketAddr::new(host.addresses.first().copied().unwrap_or(Ipv6Addr::UNSPECIFIED.into()), options.port);
    let listener = TcpListener::bind(address).or_else(|error| match address {
        // This host has no IPv6.
        SocketAddr::V6(six) if six.ip().is_unspecified() => TcpListener::bind(("0.0.0.0", options.port)),
        _ => Err(error),
    });
    let listener = listener.map_err(|error| format!("cannot listen on {address}: {error}"))?;
    let shown = listener.local_addr()?;
    say(format_args!("listening on {shown}; start `softhca bench … --to` on the other host"));
    loop {
        let (stream, from) = listener.accept()?;
        let place = place(options).of(context, local(&stream)?);
        let done = Talk::tcp(stream).map_err(Error::from).and_then(|talk| bench::answer(context, &place, talk));
        match done {
            Ok(plan) => say(format_args!("{from}: {} {}, done", plan.operation, plan.measure)),
            Err(why) if options.once => return Err(why.into()),
            Err(why) => say(format_args!("{from}: {why}")),
        }
        if options.once {
            return Ok(String::new());
        }
    }
}
