package cell_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/isolatetest"
	"palyra/isolate/tier"
)

// binary builds palyra-cell once for all tests of the package.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "palyra-cell-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "palyra-cell")
	cmd := exec.Command("go", "build", "-o", path, "palyra/cmd/palyra-cell")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	return path, cmd.Run()
})

func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv("PALYRA_TEST_CELL") == "" {
		if path, err := binary(); err == nil {
			os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}

// start starts a palyra-cell and stops it with the test.
func start(t testing.TB, tr tier.Tier) *cell.Client {
	t.Helper()
	path := os.Getenv("PALYRA_TEST_CELL") // a prebuilt one, where there is no go command
	if path == "" {
		var err error
		if path, err = binary(); err != nil {
			t.Fatalf("build palyra-cell: %v", err)
		}
	}
	c, err := cell.Start(t.Context(), cell.Config{Path: path, Tier: tr})
	if err != nil {
		t.Fatalf("start palyra-cell: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// mint asks a policy that permits everything for a grant.
func mint(t testing.TB, key grant.Key, s *isolate.Spec) grant.Grant {
	t.Helper()
	a := authz.New(permitAll(t), key)
	d := a.Decide(policy.Request{Principal: policy.LocalUser("test"), Action: policy.ToolExecute,
		Resource: policy.Tool("process.run"), Context: policy.Context{CapsuleDigest: s.Capsule}})
	digest, err := s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	g, err := a.Grant(d, nil, s.Capsule, digest, time.Minute)
	if err != nil {
		t.Fatalf("grant: %v (%+v)", err, d.View())
	}
	return g
}

func contract(t *testing.T, tr tier.Tier) {
	var c *cell.Client
	isolatetest.Run(t, isolatetest.Subject{
		Tier: tr,
		New:  func(t testing.TB) isolate.Runner { c = start(t, tr); return c },
		Grant: func(t testing.TB, s *isolate.Spec) grant.Grant {
			return mint(t, c.Key(), s)
		},
	})
}

func TestContractTierB(t *testing.T) { contract(t, tier.B) }

func TestContractTierC(t *testing.T) { contract(t, tier.C) }

// permitAll is a policy set that permits every call.
func permitAll(t testing.TB) *policy.Set {
	t.Helper()
	set, err := policy.LoadFS(fstest.MapFS{
		"all.cedar": {Data: []byte("@id(\"all\") permit (principal, action, resource);\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return set
}
