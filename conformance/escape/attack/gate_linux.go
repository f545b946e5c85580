package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// gateProbes are case 91: the filter lets execveat(2) through for whoever knows
// a number, which palyra-cell's last step passes in the argument register that
// the call does not use.
var gateProbes = map[string]probe{
	"gate":   gate,
	"reaper": reaper,
	"trace":  traceMe,
}

// gate makes the gated call with every number that how can find. If one fits, the probe
// "executed" runs in its place.
func gate(a args) (string, error) {
	var words []uint64
	how := a.str("how")
	switch how {
	case "zero":
		words = []uint64{0}
	case "guess":
		words = []uint64{1, ^uint64(0), 1 << 63, uint64(unix.Getpid()), uint64(unix.Getppid())}
		for range 1 << 16 {
			words = append(words, rand.Uint64())
		}
	case "auxv", "syscall", "stat":
		b, err := os.ReadFile("/proc/self/" + how)
		if err != nil {
			return "", err
		}
		words = append(binaryWords(b), textWords(string(b))...)
	case "memory", "exec", "fork":
		words = memoryWords()
	default:
		return "", fmt.Errorf("no source of numbers named %q", how)
	}
	if how == "exec" && a.word["again"] == "" {
		// An exec's leftovers would be there after an allowed one.
		self := []string{"/proc/self/exe", "gate", "how=exec", "again=1", "token=" + a.str("token")}
		return "", failed("execve", unix.Exec(self[0], self, os.Environ()))
	}
	self, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0)
	if err != nil { // as at tier B, where there is no /proc
		if self, err = unix.Open(os.Args[0], unix.O_RDONLY, 0); err != nil {
			self = -1 // the filter answers before the kernel looks at it
		}
	}
	argv, err := syscall.SlicePtrFromStrings([]string{"attack", "executed", "token=" + a.str("token")})
	if err != nil {
		return "", err
	}
	empty := cstring("")
	defer keep(empty)
	if how == "fork" {
		return fmt.Sprintf("%d numbers", len(words)), inChild(func() syscall.Errno { return tryGate(self, address(empty), argv, words) })
	}
	return fmt.Sprintf("%d numbers", len(words)), failed("execveat", tryGate(self, address(empty), argv, words))
}

// binaryWords are the words of b at every offset.
func binaryWords(b []byte) (out []uint64) {
	for i := 0; i+8 <= len(b); i++ {
		out = append(out, binary.NativeEndian.Uint64(b[i:]))
	}
	return out
}

// textWords are the numbers in a text, decimal or hexadecimal.
func textWords(s string) (out []uint64) {
	for f := range strings.FieldsSeq(s) {
		if v, err := strconv.ParseUint(strings.TrimPrefix(f, "0x"), 16, 64); err == nil {
			out = append(out, v)
		}
		if v, err := strconv.ParseUint(f, 10, 64); err == nil {
			out = append(out, v)
		}
	}
	return out
}

// memoryWords are the words of everything readable that this process did not
// map from a file: stack, heap, what the kernel put there. Without /proc it is
// the environment and arguments as the runtime found them.
func memoryWords() (out []uint64) {
	for _, s := range append(os.Args, os.Environ()...) {
		out = append(out, binaryWords([]byte(s))...)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return out
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return out
	}
	defer mem.Close()
	seen := make(map[uint64]bool)
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		var begin, end uint64
		if _, err := fmt.Sscanf(f[0], "%x-%x", &begin, &end); err != nil || f[1][0] != 'r' || len(f) > 5 && strings.HasPrefix(f[5], "/") {
			continue
		}
		b := make([]byte, min(end-begin, 1<<20))
		n, _ := mem.ReadAt(b, int64(begin))
		for i := 0; i+8 <= n && len(seen) < 1<<18; i += 8 {
			if v := binary.NativeEndian.Uint64(b[i:]); !seen[v] {
				seen[v] = true
				out = append(out, v)
			}
		}
	}
	return out
}

// reaper looks into process 1 and the parent, whose memory is palyra-cell's and
// holds the number, and into the given processes, which stand for them outside.
func reaper(a args) (string, error) {
	pids := append([]string{"1", strconv.Itoa(unix.Getppid())}, strings.Split(a.str("pids"), ",")...)
	err := error(unix.ENOENT)
	for _, pid := range pids {
		path := "/proc/" + pid + "/" + a.str("file")
		f, oerr := os.Open(path)
		if oerr != nil {
			err = oerr
			continue
		}
		b := make([]byte, 64)
		at := int64(0)
		if a.str("file") == "mem" {
			at = 0x400000 // where a static program of Go begins
		}
		n, rerr := f.ReadAt(b, at)
		f.Close()
		if n > 0 {
			return fmt.Sprintf("%d bytes of %s", n, path), nil
		}
		err = rerr
	}
	return "", err
}

// traceMe makes a child that its parent could stop before the gated call, to
// put other numbers into its registers.
func traceMe(args) (string, error) {
	return "", inChild(func() syscall.Errno {
		_, errno := call(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0, 0)
		return errno
	})
}
