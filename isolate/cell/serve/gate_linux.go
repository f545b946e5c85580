package serve

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/tier"
)

// The gate compares all that can be seen of a process with the orders of its tier, its spec and
// the template. They differ only if the kernel or our code is wrong.

func shut(control string, err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.Refused, "gate_"+control, "compare the process at the gate with what was ordered", err)
}

// asOrdered compares the evidence, and the values that the child left in its slots.
func (p *process) asOrdered() error {
	e := &p.ev
	atC := p.s.tier == tier.C
	bounded := atC || sys.HasSysAdmin() // tier B of a plain user keeps its bounding set and securebits
	if atC {
		if err := checkNamespaces(e, p.s.own, p.net.id, p.s.nets.voidID()); err != nil {
			return shut("namespaces", err)
		}
		// If the host lets no process without capabilities make one (Debian's
		// unprivileged_userns_clone), EPERM comes before the kernel looks at the limit.
		// checkVariables has read the limit back in either case.
		if err := p.slot(steps.SlotNested, -int64(syscall.ENOSPC), -int64(syscall.EPERM)); err != nil {
			return shut("nested_userns", err)
		}
		if err := p.checkVariables(); err != nil {
			return shut("variables", err)
		}
		if err := p.checkMounts(e.Mounts.Table); err != nil {
			return shut("mounts", err)
		}
		if err := p.checkTmp(); err != nil {
			return shut("mounts", err)
		}
		if err := p.checkSecrets(); err != nil {
			return shut("secrets", err)
		}
		if err := p.checkRoots(); err != nil {
			return shut("mounts", err)
		}
		if err := checkNetwork(&e.Network, p.local); err != nil {
			return shut("namespaces", err)
		}
	}
	if err := check(e, bounded); err != nil {
		return err
	}
	if err := p.checkIdentity(); err != nil {
		return shut("identity", err)
	}
	if bounded {
		if err := p.slot(steps.SlotSecurebits, steps.SecurebitsLocked); err != nil {
			return shut("securebits", err)
		}
	}
	if err := checkLimitsHeld(&e.Limits, steps.ResourceLimits(p.spec.Limits, p.nproc, p.s.core)); err != nil {
		return shut("limits", err)
	}
	if err := p.checkCgroup(); err != nil {
		return shut("cgroup", err)
	}
	if !p.ahead {
		if err := checkDescriptors(e.Process.Descriptors, p.spec.Script != nil); err != nil {
			return shut("descriptors", err)
		}
	}
	if v, ok := p.arena.Slot(steps.SlotBefore); !ok || v <= 0 {
		return shut("landlock", errors.New("no step opened the folder that it is to be kept from"))
	}
	if err := p.slot(steps.SlotAfter, -int64(syscall.EACCES)); err != nil {
		return shut("landlock", err)
	}
	if p.s.fence >= 0 && p.s.abi >= scopeABI {
		if err := p.slot(steps.SlotFenced, -int64(syscall.EPERM)); err != nil {
			return shut("fence", err)
		}
	}
	e.Landlock.Basis = evidence.Observed
	return nil
}

func (p *process) slot(name string, want ...int64) error {
	switch v, ok := p.arena.Slot(name); {
	case !ok:
		return fmt.Errorf("no step left %q", name)
	case !slices.Contains(want, v):
		return fmt.Errorf("step %q left %d, want %d", name, v, want)
	}
	return nil
}

func (p *process) checkVariables() error {
	for _, v := range native.Variables(p.spec, p.s.groups == nil, p.s.ownsIPC()) {
		if text, ok := p.arena.Room(v.Path); !ok || !slices.Equal(strings.Fields(text), strings.Fields(v.Value)) {
			return fmt.Errorf("%s is %q, want %q", v.Path, text, v.Value)
		}
	}
	return nil
}

// checkOwner requires the user namespace's owner to be the user whose quotas its contents count
// against: as root the cell's own.
func (p *process) checkOwner(pidfd, dir int) error {
	owner, err := sys.UserNamespaceOwner(pidfd, dir)
	if err == nil && owner != p.uid {
		err = fmt.Errorf("the user namespace is that of user %d, not of %d", owner, p.uid)
	}
	return err
}

// checkIdentity requires the run's user and, as root, no other group.
func (p *process) checkIdentity() error {
	pr := &p.ev.Process
	if pr.HostUID != p.uid || pr.HostGID != p.gid {
		return fmt.Errorf("it is user %d of group %d, not %d of %d", pr.HostUID, pr.HostGID, p.uid, p.gid)
	}
	if p.s.root && len(pr.Groups) > 0 {
		return errors.New("it has supplementary groups")
	}
	return nil
}

func checkLimitsHeld(got *evidence.Limits, want []steps.Limit) error {
	for _, l := range want {
		soft, ok1 := got.Soft[l.Name]
		hard, ok2 := got.Hard[l.Name]
		if !ok1 || !ok2 || soft < 0 || hard < 0 || uint64(soft) != l.Soft || uint64(hard) != l.Hard {
			return fmt.Errorf("%s is %d, %d; want %d, %d", l.Name, soft, hard, l.Soft, l.Hard)
		}
	}
	return nil
}

// checkDescriptors requires the descriptors of steps.Descriptors and no other.
func checkDescriptors(got []string, script bool) error {
	const keep, end = "", " cloexec"
	want := map[int]string{0: keep, 1: keep, 2: keep, 4: end, 5: end, 6: end}
	if script {
		want[isolate.ScriptFD] = keep
	}
	for _, line := range got {
		number, _, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(number)
		flag, ok := want[n]
		if err != nil || !ok || strings.HasSuffix(line, end) != (flag == end) {
			return fmt.Errorf("%q is open", line)
		}
		delete(want, n)
	}
	if len(want) > 0 {
		return fmt.Errorf("%d descriptors are missing", len(want))
	}
	return nil
}

// checkCgroup requires the process to be in the group whose limits were read back.
func (p *process) checkCgroup() error {
	if p.leaf == nil {
		return nil
	}
	group, err := p.s.reader.Group(p.program)
	if err != nil {
		return err
	}
	if want := path.Join(path.Dir(p.s.ownGroup), p.leafName); group != want {
		return fmt.Errorf("it is in %q, not in %q", group, want)
	}
	return nil
}

type shown struct {
	path string // "/usr"
	exec bool
	dev  bool
}

func below(path, name string) bool { return name == path || strings.HasPrefix(name, path+"/") }

// checkMounts compares the cell's mount table with the template and the spec. Each required
// mount must be there once, no other may be, and flags and sizes must be as ordered.
func (p *process) checkMounts(table []string) error {
	need := map[string]bool{"/": true, "/proc": true, "/tmp": true, "/dev/shm": true, p.spec.Workspace.View(): true}
	for _, s := range p.s.shown {
		need[s.path] = true
	}
	for _, path := range slices.Concat(p.s.masked, p.framed) {
		need[path] = true
	}
	if p.terminal != nil {
		need[ptsDir], need[ttyFile] = true, true
	}
	for _, m := range p.spec.Mounts {
		need[m.Source] = true
	}
	for _, name := range p.spec.Caches {
		need[isolate.CachePath(name)] = true
	}
	if len(p.spec.Secrets) > 0 {
		need[isolate.SecretsDir] = true
	}
	if p.roots != nil {
		need[isolate.RootsDir] = true
		// The host's tree may have mounts there, too: checkRoots sees which file is on top.
		for _, at := range p.roots.covered {
			need[at] = true
		}
	}
	if p.resolver {
		need[resolverFile] = true
	}
	operands := make([]string, 0, len(p.spec.Operands))
	for _, o := range p.spec.Operands {
		need[o.Path] = true
		operands = append(operands, o.Path)
	}
	for _, line := range table {
		m, err := parseMount(line)
		if err != nil {
			return err
		}
		if err := p.checkMount(m, operands); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		// The host's trees may have several mounts at a place, all alike.
		if !need[m.path] && (p.own(m.path) || slices.Contains(operands, m.path) || slices.Contains(p.s.masked, m.path)) {
			return fmt.Errorf("%q is mounted twice", m.path)
		}
		delete(need, m.path)
	}
	for path := range need {
		return fmt.Errorf("nothing is mounted at %q", path)
	}
	return nil
}

// own reports whether the cell has a file system of its own at path.
func (p *process) own(path string) bool {
	switch path {
	case "/", "/proc", "/dev/shm":
		return true
	case isolate.CachePath(isolate.CacheTmp):
		return !p.sharesTmp()
	case ptsDir, ttyFile:
		return p.terminal != nil
	case isolate.SecretsDir:
		return len(p.spec.Secrets) > 0
	case isolate.RootsDir:
		return p.roots != nil
	}
	return slices.Contains(p.framed, path) || path == p.spec.Workspace.View() && (p.spec.Workspace == nil || p.staged())
}

func (r *run) staged() bool { return r.spec.Workspace != nil && r.spec.Workspace.Staged }

type mount struct {
	path, flags, kind, propagation, super string
}

func parseMount(line string) (m mount, err error) {
	f := strings.SplitN(line, " ", 5)
	if len(f) < 4 {
		return m, fmt.Errorf("mount %q: %d fields", line, len(f))
	}
	m = mount{path: f[0], flags: f[1], kind: f[2], propagation: f[3]}
	if len(f) > 4 {
		m.super = f[4]
	}
	if strings.Contains(m.path, `\`) {
		m.path, err = unescape(m.path)
	}
	return m, err
}

// unescape undoes \ooo.
func unescape(s string) (string, error) {
	var b []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b = append(b, s[i])
			continue
		}
		if i+4 > len(s) {
			return "", fmt.Errorf("mount at %q: an escape is cut", s)
		}
		n, err := strconv.ParseUint(s[i+1:i+4], 8, 8)
		if err != nil {
			return "", fmt.Errorf("mount at %q: %w", s, err)
		}
		b = append(b, byte(n))
		i += 3
	}
	return string(b), nil
}

// kernelFiles are file systems that no mount shows, since reading there tells of the host, or
// acts on it.
var kernelFiles = []string{"proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "selinuxfs",
	"configfs", "fusectl", "pstore", "efivarfs", "bpf", "mqueue", "binfmt_misc", "nsfs", "rpc_pipefs"}

// has returns an error unless options has all of want.
func has(options string, want ...string) error {
	for _, w := range want {
		found := false
		for o := range strings.SplitSeq(options, ",") {
			found = found || o == w
		}
		if !found {
			return fmt.Errorf("it is not %s", w)
		}
	}
	return nil
}

func (p *process) checkMount(m mount, operands []string) error {
	if m.propagation != "private" {
		return errors.New("what is mounted elsewhere comes here, or the other way round")
	}
	if err := has(m.flags, "nosuid"); err != nil {
		return err
	}
	kind := func(want string) error {
		if m.kind != want {
			return fmt.Errorf("it is no %s", want)
		}
		return nil
	}
	switch {
	case m.path == "/":
		return errors.Join(kind("tmpfs"), has(m.flags, "ro", "nodev"))
	case m.path == "/proc":
		return errors.Join(kind("proc"), has(m.flags, "nodev", "noexec"))
	case slices.Contains(p.s.masked, m.path):
		return has(m.flags, "ro", "noexec")
	case m.path == p.spec.Workspace.View() && p.staged():
		if has(m.super, "ro") == nil { // as the kernel does without a word where it can't write to the layer
			return errors.New("the layer can't be written to")
		}
		return errors.Join(kind("overlay"), has(m.flags, "rw", "nodev"), has(m.super, "userxattr"))
	case slices.Contains(p.framed, m.path):
		return errors.Join(kind("tmpfs"), has(m.flags, "ro", "nodev", "noexec"))
	case m.path == ptsDir && p.terminal != nil:
		return errors.Join(kind("devpts"), has(m.flags, "noexec"), has(m.super, "ptmxmode=666", "max="+strconv.Itoa(isolate.MaxTerminals)))
	case m.path == ttyFile && p.terminal != nil:
		return has(m.flags, "ro", "noexec")
	case (m.path == isolate.SecretsDir || m.path == isolate.RootsDir) && p.own(m.path):
		return errors.Join(kind("tmpfs"), has(m.flags, "ro", "nodev", "noexec"))
	case m.path == resolverFile && p.resolver:
		return has(m.flags, "ro", "nodev", "noexec")
	case p.own(m.path):
		page := int64(os.Getpagesize())
		size := (p.spec.Limits.Disk + page - 1) / page * page >> 10
		return errors.Join(kind("tmpfs"), has(m.flags, "nodev"),
			has(m.super, "size="+strconv.FormatInt(size, 10)+"k", "nr_inodes="+strconv.FormatInt(p.spec.Limits.Inodes, 10)))
	case slices.Contains(operands, m.path):
		return errors.Join(kind("tmpfs"), has(m.flags, "ro", "nodev"))
	case below(p.spec.Workspace.View(), m.path) && p.spec.Workspace != nil:
		if p.spec.Workspace.ReadOnly {
			return has(m.flags, "ro", "nodev")
		}
		return has(m.flags, "nodev")
	}
	for _, name := range p.spec.Caches {
		if m.path == isolate.CachePath(name) {
			return has(m.flags, "rw", "nodev")
		}
	}
	for _, t := range p.spec.Mounts {
		if below(t.Source, m.path) {
			if slices.Contains(kernelFiles, m.kind) {
				return errors.New("the files of a mount are the kernel's")
			}
			return has(m.flags, "ro", "nodev")
		}
	}
	for _, s := range p.s.shown {
		if !below(s.path, m.path) {
			continue
		}
		err := has(m.flags, "ro")
		if !s.dev {
			err = errors.Join(err, has(m.flags, "nodev"))
		}
		if !s.exec {
			err = errors.Join(err, has(m.flags, "noexec"))
		}
		return err
	}
	return errors.New("it was not ordered")
}
