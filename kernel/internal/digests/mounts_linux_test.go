package digests

import (
	"os"
	"runtime"
	"syscall"
	"testing"

	"palyra/internal/canon"
	"palyra/kernel/internal/pin"
)

// TestMountedOver: a file bound over another is another file, and so is the same
// file on another mount.
func TestMountedOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := folder(t)
	file, beside := dir+"/file", dir+"/beside"
	must(t, os.WriteFile(file, []byte("first"), 0o755))
	must(t, os.WriteFile(beside, []byte("other"), 0o755))
	must(t, os.Mkdir(dir+"/again", 0o755))
	settle(t, beside)
	c := aged("", "")
	of(t, c, file)
	if d := of(t, c, file); !d.Cached {
		t.Fatal("not remembered")
	}
	inNamespace(t, func(t *testing.T) {
		must(t, syscall.Mount(beside, file, "", syscall.MS_BIND, ""))
		must(t, syscall.Mount(dir, dir+"/again", "", syscall.MS_BIND, ""))
		if d := of(t, c, file); d.Cached || d.Sum != canon.Sum([]byte("other")) {
			t.Errorf("mounted over: %+v", d)
		}
		if d := of(t, c, dir+"/again/file"); d.Cached || d.Sum != canon.Sum([]byte("first")) {
			t.Errorf("the folder mounted again: %+v", d)
		}
	})
	if d := of(t, c, file); d.Sum != canon.Sum([]byte("first")) {
		t.Errorf("without the mount: %+v", d)
	}
}

// inNamespace runs f as a subtest in a mount namespace of its own.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Run("inside", func(t *testing.T) {
		runtime.LockOSThread() // never unlocked: the thread ends with the subtest, and its namespace with it
		must(t, syscall.Unshare(syscall.CLONE_NEWNS|syscall.CLONE_FS))
		must(t, syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		f(t)
	})
}

// TestOverlay: the file system of containers, through which the one below it is
// seen until a file is changed.
func TestOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := folder(t)
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		must(t, os.Mkdir(dir+"/"+d, 0o755))
	}
	must(t, os.WriteFile(dir+"/lower/file", []byte("first"), 0o755))
	settle(t, dir+"/lower/file")
	c := aged("", "")
	inNamespace(t, func(t *testing.T) {
		options := "lowerdir=" + dir + "/lower,upperdir=" + dir + "/upper,workdir=" + dir + "/work"
		if err := syscall.Mount("overlay", dir+"/merged", "overlay", 0, options); err != nil {
			t.Skip("host control missing: overlay: ", err)
		}
		file := dir + "/merged/file"
		for i, swap := range []func(content string){
			func(string) {},
			func(content string) { overwrite(t, file, content) }, // copied up
			func(content string) { overwrite(t, file, content) },
			func(content string) { mapped(t, file, content) },
			func(content string) {
				was := mtime(t, file)
				mapped(t, file, content)
				must(t, os.Chtimes(file, was, was))
			},
		} {
			want := []string{"first", "other", "third", "forth", "fifth"}[i]
			swap(want)
			if d := of(t, c, file); d.Cached || d.Sum != canon.Sum([]byte(want)) {
				t.Errorf("%s: %+v", want, d)
			}
			settle(t, file)
			of(t, c, file)
			if d := of(t, c, file); !d.Cached || d.Sum != canon.Sum([]byte(want)) {
				t.Errorf("%s, again: %+v", want, d)
			}
		}
		w, err := os.OpenFile(file, os.O_RDWR, 0)
		must(t, err)
		defer w.Close()
		r, err := os.Open(file)
		must(t, err)
		defer r.Close()
		if got := pin.WritersOf(r); got != pin.WritersSome {
			t.Errorf("open for writing, and WritersOf says %d", got)
		}
	})
}
