package main

import "fmt"

// gateCases are 91: the one call that the filter lets through for a number that
// only palyra-cell knows.
func gateCases() []attackCase {
	var out []attackCase
	for _, g := range []struct{ how, attack string }{
		{"zero", "execute a descriptor with execveat, as if there were no gate"},
		{"guess", "with 65536 guesses"},
		{"auxv", "with all of the auxiliary vector"},
		{"syscall", "with the registers in /proc/self/syscall"},
		{"stat", "with /proc/self/stat"},
		{"memory", "with every word of stack, heap and vvar"},
		{"exec", "… after an execve"},
		{"fork", "… from a forked child"},
	} {
		out = append(out, attackCase{number: 91, variant: g.how, name: "cookie-gate", attack: g.attack,
			stopped: both(join(filtered, []string{"ENOENT", "EACCES"})...), note: "ENOENT, EACCES: tier B has no /proc",
			stage: func(s *stage) (scene, error) {
				return scene{probe: "gate", args: []string{"how=" + g.how, "token=" + s.nonce}, canary: executed}, nil
			}})
	}
	for _, file := range []string{"mem", "syscall", "auxv", "maps", "environ"} {
		out = append(out, attackCase{number: 91, variant: "reaper-" + file, name: "cookie-gate", attack: "read that file of process 1 and of the parent, which share palyra-cell's memory",
			stopped: both("EACCES", "EPERM", "ENOENT", "ESRCH"), stage: func(s *stage) (scene, error) {
				v, err := s.victim()
				if err != nil {
					return scene{}, err
				}
				return scene{probe: "reaper", args: []string{"file=" + file, fmt.Sprintf("pids=%d", v.pid)}}, nil
			}})
	}
	return append(out, call(91, "trace", "cookie-gate", "have a tracing parent change the gated call's registers", both(filtered...), "trace"))
}
