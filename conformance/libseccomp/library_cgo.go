//go:build linux && cgo

package libseccomp

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// From seccomp.h of libseccomp 2.5, whose ABI is that of libseccomp.so.2.
struct cmp { unsigned arg; int op; uint64_t a, b; };

static struct {
	int   (*api_set)(unsigned);
	void *(*init)(uint32_t);
	void  (*release)(void *);
	int   (*arch_add)(void *, uint32_t);
	int   (*arch_remove)(void *, uint32_t);
	uint32_t (*arch_native)(void);
	int   (*attr_set)(void *, int, uint32_t);
	int   (*resolve)(uint32_t, const char *);
	int   (*rule_add)(void *, uint32_t, int, unsigned, const struct cmp *);
	int   (*export_bpf)(const void *, int);
} lib;

static const char *load(void) {
	void *h = dlopen("libseccomp.so.2", RTLD_NOW);
	if (!h) return dlerror();
#define SYM(field, name) if (!(*(void **)&lib.field = dlsym(h, name))) return name
	SYM(api_set, "seccomp_api_set");
	SYM(init, "seccomp_init");
	SYM(release, "seccomp_release");
	SYM(arch_add, "seccomp_arch_add");
	SYM(arch_remove, "seccomp_arch_remove");
	SYM(arch_native, "seccomp_arch_native");
	SYM(attr_set, "seccomp_attr_set");
	SYM(resolve, "seccomp_syscall_resolve_name_arch");
	SYM(rule_add, "seccomp_rule_add_exact_array");
	SYM(export_bpf, "seccomp_export_bpf");
	lib.api_set(3); // knows KILL_PROCESS, whatever this kernel is
	return 0;
}

static void *filter_new(uint32_t deflt, uint32_t arch) {
	void *f = lib.init(deflt);
	if (!f) return 0;
	uint32_t native = lib.arch_native();
	if (arch != native && (lib.arch_add(f, arch) || lib.arch_remove(f, native))) goto bad;
	if (lib.attr_set(f, 2, 0x80000000u)) goto bad; // SCMP_FLTATR_ACT_BADARCH: kill the process
	return f;
bad:
	lib.release(f);
	return 0;
}
static void filter_free(void *f) { lib.release(f); }
static int filter_rule(void *f, uint32_t action, int nr, unsigned n, const struct cmp *c) { return lib.rule_add(f, action, nr, n, c); }
static int resolve(uint32_t arch, const char *name) { return lib.resolve(arch, name); }
static uint32_t native(void) { return lib.arch_native(); }

static long filter_export(void *f, void *buf, size_t size) {
	int fd = memfd_create("bpf", 0);
	if (fd < 0) return -errno;
	long n = lib.export_bpf(f, fd);
	if (!n) n = pread(fd, buf, size, 0);
	close(fd);
	return n;
}
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"unsafe"

	"palyra/isolate/native/seccomp"
)

// load finds the library. Nothing else may be called without it.
func load() error {
	if msg := C.load(); msg != nil {
		return fmt.Errorf("load libseccomp: %s", C.GoString(msg))
	}
	return nil
}

// numberOf returns what libseccomp calls a system call on an architecture;
// negative for one that the architecture does not have, -1 for an unknown name.
func numberOf(audit uint32, name string) int {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return int(C.resolve(C.uint32_t(audit), s))
}

// compare is an argument comparison: (arg & mask) == value.
type compare struct {
	arg         int
	mask, value uint64
}

// filter is one of libseccomp's.
type filter struct{ ctx unsafe.Pointer }

func newFilter(deflt seccomp.Action, audit uint32) (filter, error) {
	f := filter{C.filter_new(C.uint32_t(deflt), C.uint32_t(audit))}
	if f.ctx == nil {
		return f, fmt.Errorf("seccomp_init: no filter for action %s, architecture %#x", deflt, audit)
	}
	return f, nil
}

func (f filter) close() { C.filter_free(f.ctx) }

// add adds a rule. nr is the number on the machine's own architecture, from
// which libseccomp goes to that of the filter by the name.
func (f filter) add(action seccomp.Action, nr int, cs []compare) error {
	var arr [6]C.struct_cmp
	for i, c := range cs {
		// SCMP_CMP_MASKED_EQ.
		arr[i] = C.struct_cmp{arg: C.unsigned(c.arg), op: 7, a: C.uint64_t(c.mask), b: C.uint64_t(c.value)}
	}
	rc := C.filter_rule(f.ctx, C.uint32_t(action), C.int(nr), C.unsigned(len(cs)), &arr[0])
	if rc != 0 && rc != -C.EEXIST { // the same again
		return fmt.Errorf("seccomp_rule_add: call %d: %w", nr, syscall.Errno(-rc))
	}
	return nil
}

// program returns what the filter compiles to.
func (f filter) program() ([]seccomp.Instr, error) {
	buf := make([]byte, 1<<19)
	n := C.filter_export(f.ctx, unsafe.Pointer(&buf[0]), C.size_t(len(buf)))
	if n <= 0 || n%8 != 0 || int(n) == len(buf) {
		return nil, fmt.Errorf("seccomp_export_bpf: %d", n)
	}
	var prog []seccomp.Instr
	for b := buf[:n]; len(b) > 0; b = b[8:] {
		prog = append(prog, seccomp.Instr{Code: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.LittleEndian.Uint32(b[4:])})
	}
	return prog, nil
}

// native returns the AUDIT_ARCH of this machine.
func native() uint32 { return uint32(C.native()) }
