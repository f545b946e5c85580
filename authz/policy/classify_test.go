package policy

import "testing"

func TestClassify(t *testing.T) {
	tests := []struct {
		path, interpreter string
		kind              Kind
		family            string
	}{
		{"/usr/bin/bash", "", Shell, "bash"},
		{"/usr/bin/dash", "", Shell, "dash"},
		{"/bin/bash-static", "", Shell, "bash"},
		{"/usr/bin/zsh-5.9", "", Shell, "zsh"},
		{"/usr/bin/busybox", "", Shell, "busybox"},
		{"/opt/microsoft/powershell/7/pwsh", "", Shell, "pwsh"},
		{"/usr/bin/pwsh-preview", "", Shell, "pwsh"},
		{`C:\Windows\System32\cmd.exe`, "", Shell, "cmd"},
		{`C:\Program Files\PowerShell\7\PWSH.EXE`, "", Shell, "pwsh"},
		{"/usr/bin/ksh93", "", Shell, "ksh93"},
		{"/usr/bin/python3.11", "", Interpreter, "python"},
		{"/usr/bin/python3", "", Interpreter, "python"},
		{"/usr/bin/python2.7-dbg", "", Interpreter, "python"},
		{"/usr/bin/python3.8d", "", Interpreter, "python"},
		{"/usr/bin/perl5.36.0", "", Interpreter, "perl"},
		{"/usr/bin/perl", "", Interpreter, "perl"},
		{"/usr/bin/ruby3.1", "", Interpreter, "ruby"},
		{"/usr/bin/node", "", Interpreter, "node"},
		{"/usr/bin/nodejs", "", Interpreter, "nodejs"},
		{"/usr/bin/lua5.4", "", Interpreter, "lua"},
		{"/usr/bin/php8.2", "", Interpreter, "php"},
		{"/usr/bin/php-cgi8.2", "", Interpreter, "php-cgi"},
		{"/usr/bin/tclsh8.6", "", Interpreter, "tclsh"},
		{"/usr/bin/mawk", "", Interpreter, "mawk"},
		{"/usr/bin/gawk", "", Interpreter, "gawk"},
		{"/usr/bin/gdb", "", Interpreter, "gdb"},
		{"/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "", Loader, "ld.so"},
		{"/lib/ld-linux.so.2", "", Loader, "ld.so"},
		{"/lib/ld-musl-aarch64.so.1", "", Loader, "ld.so"},
		{"/lib/x86_64-linux-gnu/ld-2.31.so", "", Loader, "ld.so"},
		{"/lib/ld64.so.2", "", Loader, "ld.so"},
		{"/usr/bin/ld.so", "", Loader, "ld.so"},
		{"/usr/bin/qemu-aarch64-static", "", Loader, "qemu"},
		{"/usr/bin/env", "", Wrapper, "env"},
		{"/usr/bin/xargs", "", Wrapper, "xargs"},
		{"/usr/bin/timeout", "", Wrapper, "timeout"},
		{"/usr/bin/x86_64", "", Wrapper, "x86_64"},
		{"/usr/bin/sudo", "", Wrapper, "sudo"},
		{"/usr/bin/aa-exec", "", Wrapper, "aa-exec"},
		{"/usr/bin/runcon", "", Wrapper, "runcon"},
		{"/usr/bin/systemd-inhibit", "", Wrapper, "systemd-inhibit"},
		{"/usr/sbin/switch_root", "", Wrapper, "switch_root"},
		{"/usr/bin/ssh-agent", "", Wrapper, "ssh-agent"},
		{"/usr/bin/gpg-agent", "", Wrapper, "gpg-agent"},
		{"/usr/bin/msgexec", "", Wrapper, "msgexec"},
		{"/usr/bin/proxychains4", "", Wrapper, "proxychains"},
		{"/usr/bin/lli-14", "", Interpreter, "lli"},
		{"/usr/bin/llvm-rtdyld-14", "", Interpreter, "llvm-rtdyld"},
		{"/usr/lib/jvm/java-17-openjdk-amd64/bin/jrunscript", "", Interpreter, "jrunscript"},
		{"/usr/bin/ssh-add", "", Other, "ssh-add"},

		// As distributions spell them.
		{"/usr/bin/perl5.36-x86_64-linux-gnu", "", Interpreter, "perl"},
		{"/usr/bin/x86_64-linux-gnu-python3.11", "", Interpreter, "python"},
		{"/usr/bin/arm-linux-gnueabihf-gdb", "", Interpreter, "gdb"},
		{"/usr/bin/luajit-2.1.0-beta3", "", Interpreter, "luajit"},
		{"/usr/bin/octave-cli", "", Interpreter, "octave"},
		{"/usr/bin/bsd-csh", "", Shell, "csh"},
		{"/usr/bin/x86_64-linux-gnu-gcc-12", "", Other, "x86_64-linux-gnu-gcc"},
		{"/usr/bin/x86_64-linux-gnu-python3.11-config", "", Other, "x86_64-linux-gnu-python3.11-config"},
		{"/usr/bin/ssh-keygen", "", Other, "ssh-keygen"},
		{"/usr/bin/time-admin", "", Other, "time-admin"},

		{"/usr/bin/cat", "", Other, "cat"},
		{"/usr/bin/sha256sum", "", Other, "sha256sum"},
		{"/usr/bin/ld.gold", "", Other, "ld.gold"},
		{"/usr/bin/ldconfig", "", Other, "ldconfig"},
		{"/usr/lib/libld.so.1", "", Other, "libld.so"},
		{"/usr/bin/qemu-img", "", Other, "qemu-img"},
		{"/usr/bin/bashful", "", Other, "bashful"},
		{"/usr/bin/shuf", "", Other, "shuf"},
		{"/usr/bin/find", "", Other, "find"},
		{"/srv/123", "", Other, "123"},
		{"/", "", Other, ""},
		{"", "", Other, ""},

		{"/srv/cat", "/usr/bin/dash", Shell, "dash"},
		{"/srv/tool", "/usr/bin/python3.12", Interpreter, "python"},
		{"/srv/tool", "/usr/bin/env", Wrapper, "env"},
		{"/usr/bin/python3.12", "/srv/own", Interpreter, "#!own"},
	}
	for _, test := range tests {
		kind, family := Classify(test.path, test.interpreter)
		if kind != test.kind || family != test.family {
			t.Errorf("Classify(%q, %q) = %s %q, want %s %q", test.path, test.interpreter, kind, family, test.kind, test.family)
		}
	}
}

// TestDenylistIsComplete: every program that the contract names is of a dangerous kind.
func TestDenylistIsComplete(t *testing.T) {
	for _, name := range []string{"bash", "sh", "dash", "zsh", "fish", "ksh", "csh", "tcsh", "busybox", "pwsh", "python", "python2",
		"python3.13", "node", "nodejs", "deno", "bun", "perl", "ruby", "php", "lua", "tclsh", "wish", "Rscript", "awk", "gawk", "mawk",
		"gdb", "ld-linux-aarch64.so.1", "env", "xargs", "nice", "nohup", "timeout", "setsid", "stdbuf", "sudo", "su", "doas",
		"strace", "script", "ssh"} {
		if kind, _ := Classify("/usr/bin/"+name, ""); kind == Other {
			t.Errorf("%s is classified as other", name)
		}
	}
}

func FuzzClassify(f *testing.F) {
	for _, s := range []string{"/usr/bin/python3.11", "/bin/sh", "/x/ld-2.31.so", "", "/", "a.exe", "3.1-4", "-_-", "dddd1d", "d8"} {
		f.Add(s, "")
		f.Add("/srv/x", s)
	}
	f.Fuzz(func(t *testing.T, path, interpreter string) {
		kind, family := Classify(path, interpreter)
		if interpreter != "" && kind == Other {
			t.Errorf("script of %q is not dangerous", interpreter)
		}
		// A version after a known family changes nothing.
		if _, known := families()[family]; known && interpreter == "" && kind != Loader && !isDigit(family[len(family)-1]) {
			if k, fam := Classify("/usr/bin/"+family+"9.9", ""); k != kind || fam != family {
				t.Errorf("%q is %s %q but with a version %s %q", path, kind, family, k, fam)
			}
		}
	})
}
