package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"palyra/internal/fault"
	"palyra/isolate/evidence"
)

// patience bounds one probe. A probe that hangs could not tell.
const patience = 10 * time.Second

// maxAnswer bounds a child's answer, in bytes.
const maxAnswer = 1 << 12

// nobody is the user of the unprivileged probe when root asks.
const nobody = 65534

// childWord is the helper's first argument.
const childWord = "probe-child"

// result is a child's output, as one line of JSON.
type result struct {
	Answer Answer `json:"answer"`
	Detail string `json:"detail"`
}

// Run probes every control, one after the other. helper is the path of
// palyra-cell. An error means that nothing could be probed at all.
func Run(ctx context.Context, helper string) (*Report, error) {
	// Use the helper as a descriptor, so that the unprivileged probe needs no path to it.
	f, err := os.Open(helper)
	if err != nil {
		return nil, fault.New(fault.Refused, "helper_unusable", fmt.Sprintf("open probe helper %q", helper), err)
	}
	defer f.Close()
	host, err := evidence.ReadHost("/proc")
	if err != nil {
		return nil, fault.New(fault.Refused, "proc_unavailable", "probe host", err).WithHint("mount proc on /proc")
	}
	r := &Report{Kernel: host.Release, Machine: host.Machine, UID: os.Getuid()}
	for _, c := range Controls() {
		if err := ctx.Err(); err != nil {
			return nil, fault.New(fault.Canceled, "canceled", "probe host", err)
		}
		res := ask(ctx, f, c)
		fd := Finding{Name: c.Name, Answer: res.Answer, Detail: res.Detail, Since: c.Since, How: c.How, Needed: c.Needed}
		if res.Answer != Yes {
			fd.Cost, fd.Hint = c.Cost, c.Hint
		}
		r.Findings = append(r.Findings, fd)
	}
	return r, nil
}

// ask starts one child in the namespaces of the control and takes its answer.
func ask(ctx context.Context, helper *os.File, c Control) result {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return start(ctx, helper, c.Name, c.namespaces, c.nobody && os.Getuid() == 0)
}

func start(ctx context.Context, helper *os.File, name string, namespaces uint64, drop bool) result {
	kind, _ := strings.CutSuffix(name, "_namespace")
	// Without a namespace of that kind the child compares with nothing, and a
	// child that has one differs.
	mine, _ := namespaceLink(kind)
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	// clone(2) has no bit for a time namespace; the child makes that itself.
	attr.Cloneflags = uintptr(namespaces &^ newTime)
	if namespaces&newUser != 0 {
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if drop {
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return result{Unknown, "start helper: " + errnoText(err)}
	}
	defer null.Close()
	answer, out, err := os.Pipe()
	if err != nil {
		return result{Unknown, "start helper: " + errnoText(err)}
	}
	defer answer.Close()
	// Don't use os/exec, which palyra-cell has no other use for. Descriptor 3 is the helper
	// itself.
	child, err := os.StartProcess("/proc/self/fd/3", []string{"palyra-cell", childWord, name, mine},
		&os.ProcAttr{Dir: "/", Env: []string{}, Files: []*os.File{null, out, null, helper}, Sys: attr})
	out.Close()
	switch {
	case err == nil:
	case namespaces != 0 && refused(err):
		return result{No, "clone: " + errnoText(err)}
	default:
		return result{Unknown, "start helper: " + errnoText(err)}
	}
	stop := context.AfterFunc(ctx, func() {
		child.Kill()
		// A child of it may hold the other end.
		answer.SetReadDeadline(time.Now().Add(time.Second))
	})
	defer stop()
	text, _ := io.ReadAll(io.LimitReader(answer, maxAnswer))
	state, err := child.Wait()
	if ctx.Err() != nil {
		return result{Unknown, "timed out"}
	}
	if err == nil && !state.Success() {
		err = errors.New(state.String())
	}
	var res result
	if json.Unmarshal(text, &res) == nil && res.Detail != "" && err == nil {
		return res
	}
	if err != nil {
		return result{Unknown, "helper: " + err.Error()}
	}
	return result{Unknown, "helper gave no answer"}
}

// refused reports whether an errno is the kernel's way to say that there are no
// namespaces for this user: EPERM and EACCES (forbidden), ENOSPC and EUSERS
// (limit of 0), EINVAL (not built in), ENOSYS.
func refused(err error) bool {
	for _, e := range []syscall.Errno{syscall.EPERM, syscall.EACCES, syscall.ENOSPC, syscall.EUSERS, syscall.EINVAL, syscall.ENOSYS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func errnoText(err error) string {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e.Error()
	}
	return err.Error()
}

// namespaceLink returns the text that identifies the namespace of a kind of this thread,
// "net:[4026531840]". /proc/thread-self is right in a new PID namespace, too, in which the
// process has another number than in this /proc.
func namespaceLink(kind string) (string, error) {
	if kind == "time" {
		kind = "time_for_children"
	}
	return os.Readlink("/proc/thread-self/ns/" + kind)
}
