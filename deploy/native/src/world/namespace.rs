//! A network namespace, held by a thread that lives in it.

use super::{netlink, sys};
use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// Name of a region's only interface beside loopback.
const INTERFACE: &str = "wan0";

/// Set in each region's namespace, whose defaults otherwise come from the host.
///
/// After a cut a connection is tried again every second, and is given up only after two minutes without an answer: a short largest
/// time-out alone would shorten the whole patience to 15 tries (tcp(7): `tcp_retries2`).
const SYSCTLS: &[(&str, &str)] = &[
    ("net.ipv4.tcp_rto_max_ms", "1000"),
    ("net.ipv4.tcp_retries2", "120"),
    ("net.ipv4.tcp_syn_retries", "6"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_rmem", "4096 131072 67108864"),
    ("net.ipv4.tcp_wmem", "4096 65536 67108864"),
    ("net.ipv4.tcp_keepalive_time", "10"),
    ("net.ipv4.tcp_keepalive_intvl", "2"),
    ("net.ipv4.tcp_keepalive_probes", "5"),
    ("net.ipv6.conf.all.disable_ipv6", "1"),
];

/// What a namespace is made of.
#[derive(Clone, Debug)]
pub struct NamespaceSpec {
    /// Address of the region.
    pub address: Ipv4Addr,
    /// Largest packet.
    pub mtu: u32,
    /// The TUN device's node.
    pub tun: PathBuf,
    /// Where a node of one's own may be made when that one cannot be opened.
    pub private_tun: PathBuf,
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that lives in one network namespace. When it is dropped, the namespace goes with its last process and socket.
pub struct Namespace {
    jobs: mpsc::Sender<Job>,
}

impl Namespace {
    /// Makes a namespace with its interface up; returns the other end of that interface, and remarks about settings that this kernel
    /// does not take.
    ///
    /// # Errors
    /// Says what must be permitted when the kernel refuses.
    pub fn open(spec: &NamespaceSpec) -> Result<(Self, File, Vec<String>)> {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::Builder::new().name(format!("netns-{}", spec.address)).spawn(move || queue.into_iter().for_each(|job| job()))?;
        let namespace = Self { jobs };
        let spec = spec.clone();
        let (device, remarks) = namespace.run(move || furnish(&spec))??;
        Ok((namespace, device, remarks))
    }

    /// Runs `work` inside the namespace. A socket belongs for ever to the namespace it was made in, so `work` need only make it:
    /// connecting can happen on any thread.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (done, answer) = mpsc::sync_channel(1);
        let gone = || anyhow!("the namespace is gone");
        self.jobs.send(Box::new(move || drop(done.send(work())))).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }
}

/// Moves the calling thread into a new network namespace and furnishes that.
fn furnish(spec: &NamespaceSpec) -> Result<(File, Vec<String>)> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(refused)?;
    let remarks = SYSCTLS.iter().filter_map(|(key, value)| set_sysctl(key, value).err().map(|error| format!("{error:#}"))).collect();
    let device = open_device(&spec.tun, &spec.private_tun)?;
    netlink::configure(INTERFACE, spec.address, spec.mtu).with_context(|| format!("cannot configure {INTERFACE} {}", spec.address))?;
    Ok((device, remarks))
}

fn refused(error: Errno) -> anyhow::Error {
    anyhow!(
        "the kernel does not permit a network namespace ({error}): run as root or as a user who may make user namespaces; in a container add \
         the capabilities SYS_ADMIN and NET_ADMIN and the device /dev/net/tun"
    )
}

fn set_sysctl(key: &str, value: &str) -> Result<()> {
    // /proc/sys/net shows the namespace of the thread that opens it.
    fs::write(Path::new("/proc/sys").join(key.replace('.', "/")), value).with_context(|| format!("{key} stays as it is"))
}

/// Opens the TUN device; tries once with a private node when the usual one is missing or closed to this user.
fn open_device(node: &Path, private: &Path) -> Result<File> {
    let error = match sys::open_tun(node, INTERFACE) {
        Ok(device) => return Ok(device),
        Err(error) => error,
    };
    if let Ok(device) = open_private_device(private) {
        return Ok(device);
    }
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("run as root, or let your user open it (sudo chmod 0666 {}), or name another node of it with --tun", node.display())
        }
        io::ErrorKind::NotFound => "load the kernel's module (sudo modprobe tun); in a container add the device /dev/net/tun".into(),
        _ => "the world needs the kernel's TUN driver and the right to administer networks (CAP_NET_ADMIN)".into(),
    };
    bail!("cannot open the TUN device {}: {error}; {advice}", node.display())
}

fn open_private_device(node: &Path) -> io::Result<File> {
    // Numbers of the TUN device: the kernel's Documentation/admin-guide/devices.txt.
    match mknod(node, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, makedev(10, 200)) {
        Ok(()) | Err(Errno::EEXIST) => sys::open_tun(node, INTERFACE),
        Err(error) => Err(error.into()),
    }
}
