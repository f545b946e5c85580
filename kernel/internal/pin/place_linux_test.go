package pin

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPlaceIn(t *testing.T) {
	const mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n" +
		"31 22 254:0 /home/a\\040b/keys /mnt/k\\134x rw - ext4 /dev/vda rw\n" +
		"9\n"
	for _, c := range []struct{ id, name, want string }{
		{"22", "/", "/"},
		{"22", "/srv/x", "/srv/x"},
		{"31", `/mnt/k\x`, "/home/a b/keys"},
		{"31", `/mnt/k\x/sub`, "/home/a b/keys/sub"},
		{"31", `/mnt/k\xy`, ""},
		{"31", "/srv", ""},
		{"9", "/", ""},
		{"", "/", ""},
	} {
		got, err := placeIn(mounts, c.id, c.name)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s %s: %q, %v; want %q", c.id, c.name, got, err, c.want)
		}
	}
}

func TestPlace(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	var places [2]string
	for i, name := range []string{dir, sub} {
		h, err := Dir(name)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if places[i], err = h.Place(); err != nil {
			t.Fatal(err)
		}
	}
	if places[1] != places[0]+"/sub" {
		t.Errorf("%q", places)
	}
}
