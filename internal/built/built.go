// Package built gives tests the programs of cmd/ as they ship. make test has just built them all
// and says where: linking them again for each package that starts some took a second of processor
// time for every four. Without make, as in go test ./..., they are built.
//
// It's for tests alone; conformance/arch holds that.
package built

import (
	"fmt"
	"os"
	"os/exec"
)

// from names the folder with what make test has built.
const from = "PALYRA_TEST_BUILT"

// Into puts the named programs into dir, or all of them. An error has what cp or go wrote.
func Into(dir string, programs ...string) error {
	built := os.Getenv(from)
	// cp, since a child that's forked while this process has a program open for writing would
	// have it open, too, and nobody could start it.
	cmd, where := exec.Command("cp", "-t", dir, "--"), built+"/"
	if built == "" {
		cmd, where = exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/"), "palyra/cmd/"
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	switch {
	case len(programs) > 0:
	case built == "":
		programs = []string{"..."}
	default:
		files, err := os.ReadDir(built)
		if err != nil {
			return err
		}
		for _, f := range files {
			if f.Type().IsRegular() {
				programs = append(programs, f.Name())
			}
		}
	}
	for _, p := range programs {
		cmd.Args = append(cmd.Args, where+p)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %q: %w\n%s", programs, err, out)
	}
	return nil
}
