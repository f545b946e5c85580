package main

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// egressProbes are case 120: what leads out of a network, or elsewhere in it.
var egressProbes = map[string]probe{"network": network}

// network changes the network that it is in: one of its own, if it can make one, as root of a user
// namespace. It never changes the host's, whose inode it is told.
func network(a args) (string, error) {
	// struct ifreq, netdevice(7): a name, then flags or a struct sockaddr_in.
	request := func(set func(b []byte)) []byte {
		b := make([]byte, 40)
		copy(b, "lo")
		set(b[unix.IFNAMSIZ:])
		return b
	}
	up := request(func(b []byte) { binary.NativeEndian.PutUint16(b, unix.IFF_UP) })
	down := request(func(b []byte) {})
	address10 := request(func(b []byte) {
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		copy(b[4:], []byte{10, 9, 8, 7})
	})
	path, value := cstring("/proc/sys/net/ipv4/ip_default_ttl"), cstring("65")
	route := defaultRoute()
	defer keep(up, down, address10, path, value, route)
	cwd := unix.AT_FDCWD
	how := a.str("how")
	switch how {
	case "address", "down", "variable", "route":
	default:
		return "", fmt.Errorf("no change named %q", how)
	}
	var here unix.Stat_t
	outside := unix.Stat("/proc/self/ns/net", &here) == nil && a.str("host") == fmt.Sprint(here.Ino)
	return "", asRoot(how, func() syscall.Errno {
		if _, errno := call(unix.SYS_UNSHARE, unix.CLONE_NEWNET, 0, 0, 0, 0); errno != 0 && outside {
			return errno
		}
		if how == "variable" {
			fd, errno := call(unix.SYS_OPENAT, uintptr(cwd), address(path), unix.O_WRONLY, 0, 0)
			if errno == 0 {
				_, errno = call(unix.SYS_WRITE, fd, address(value), 2, 0, 0)
			}
			return errno
		}
		fd, errno := call(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0, 0, 0)
		if errno != 0 {
			fd, errno = call(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_DGRAM, 0, 0, 0)
		}
		if errno != 0 {
			return errno
		}
		_, errno = call(unix.SYS_IOCTL, fd, unix.SIOCSIFFLAGS, address(up), 0, 0)
		switch how {
		case "address":
			_, errno = call(unix.SYS_IOCTL, fd, unix.SIOCSIFADDR, address(address10), 0, 0)
		case "down":
			_, errno = call(unix.SYS_IOCTL, fd, unix.SIOCSIFFLAGS, address(down), 0, 0)
		case "route":
			if fd, errno = call(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, 0, 0); errno == 0 {
				errno = asked(fd, route)
			}
		}
		return errno
	})
}

// defaultRoute asks for "ip route add default dev lo", rtnetlink(7).
func defaultRoute() []byte {
	n := binary.NativeEndian
	b := n.AppendUint32(nil, 36)
	b = n.AppendUint16(b, unix.RTM_NEWROUTE)
	b = n.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	b = n.AppendUint32(b, 1)
	b = n.AppendUint32(b, 0)
	b = append(b, unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0)
	b = n.AppendUint16(b, 8)
	b = n.AppendUint16(b, unix.RTA_OIF)
	return n.AppendUint32(b, 1) // lo is each network's first
}

// asked sends a request over netlink and returns what the kernel says.
func asked(fd uintptr, request []byte) syscall.Errno {
	if _, errno := call(unix.SYS_WRITE, fd, address(request), uintptr(len(request)), 0, 0); errno != 0 {
		return errno
	}
	var answer [64]byte
	n, errno := call(unix.SYS_READ, fd, address(answer[:]), uintptr(len(answer)), 0, 0)
	if errno != 0 || n < 20 {
		return max(errno, unix.EBADMSG)
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(answer[16:])))
}
