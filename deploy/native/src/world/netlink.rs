//! Three hand-made rtnetlink requests (rtnetlink(7)): all that a region's network needs.

use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

/// With the usual queue of 500 packets a bulk sender outruns the router and loses packets.
const QUEUE_PACKETS: u32 = 4000;
/// The connected route 10.0.0.0/12 is the route to every other region, so no route is added. A wider one would swallow
/// addresses of the host's surroundings.
const PREFIX_BITS: u8 = 12;

/// Brings up loopback and `name` with its address, in the network namespace of the calling thread.
///
/// # Errors
/// What the kernel says.
pub fn configure(name: &str, address: Ipv4Addr, mtu: u32) -> io::Result<()> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    bring_up(&socket, "lo", &[])?;
    bring_up(&socket, name, &[(libc::IFLA_MTU, mtu), (libc::IFLA_TXQLEN, QUEUE_PACKETS)])?;
    // struct ifaddrmsg: family, prefix, flags, scope, index.
    let mut message = vec![libc::AF_INET as u8, PREFIX_BITS, 0, 0];
    message.extend(if_nametoindex(name)?.to_ne_bytes());
    put_attribute(&mut message, libc::IFA_LOCAL, address.octets());
    put_attribute(&mut message, libc::IFA_ADDRESS, address.octets());
    request(&socket, libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &message)
}

fn bring_up(socket: &OwnedFd, name: &str, attributes: &[(u16, u32)]) -> io::Result<()> {
    // struct ifinfomsg: family and type, index, flags, which flags change.
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    let mut message = vec![0_u8; 4];
    message.extend(if_nametoindex(name)?.to_ne_bytes());
    message.extend(up);
    message.extend(up);
    for (kind, value) in attributes {
        put_attribute(&mut message, *kind, value.to_ne_bytes());
    }
    request(socket, libc::RTM_NEWLINK, 0, &message)
}

fn put_attribute(message: &mut Vec<u8>, kind: u16, value: [u8; 4]) {
    message.extend(8_u16.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
}

/// One request; the kernel answers it with an error number, 0 for none.
fn request(socket: &OwnedFd, kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
    // struct nlmsghdr: length, type, flags, sequence, port.
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut answer = [0_u8; 4096];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let error_type = (libc::NLMSG_ERROR as u16).to_ne_bytes();
    if length < 20 || answer[4..6] != error_type {
        return Err(io::Error::other("unexpected netlink answer"));
    }
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
