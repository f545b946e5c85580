package bettertls

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/Netflix/bettertls/test-suites/certutil"
	"github.com/Netflix/bettertls/test-suites/nameconstraints"
	"github.com/Netflix/bettertls/test-suites/pathbuilding"
	testcase "github.com/Netflix/bettertls/test-suites/test-case"

	"palyra/crypt/ca"
)

// TestCases gives each case's chain to our path building, and its root as the only anchor. A chain
// that the case refuses is refused. One that it accepts has a path; ca.Verify refuses it all the
// same, since its certificates aren't of our profile.
func TestCases(t *testing.T) {
	root, key, err := certutil.GenerateSelfSignedCert("bettertls_trust_root")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		testcase.TestCaseProvider
		want uint // fewer cases would be another suite
	}{{nameconstraints.NewTestCaseProvider(), 9491}, {pathbuilding.NewTestCaseProvider(), 81}} {
		p := s.TestCaseProvider
		t.Run(p.Name(), func(t *testing.T) {
			n, err := p.GetTestCaseCount()
			if err != nil || n != s.want {
				t.Fatalf("%d cases, want %d: %v", n, s.want, err)
			}
			got := make(map[string]int)
			for i := range n {
				c, err := p.GetTestCase(i)
				if err != nil {
					t.Fatal(err)
				}
				cert, err := c.GetCertificates(root, key)
				if err != nil {
					t.Fatal(err)
				}
				now := time.Now()
				err = ca.TestOnlyPath(cert.Certificate, [][]byte{root.Raw}, x509.ExtKeyUsageServerAuth, now)
				if err == nil {
					leaf, perr := x509.ParseCertificate(cert.Certificate[0])
					if perr != nil {
						t.Fatal(perr)
					}
					err = leaf.VerifyHostname(c.GetHostname()) // a case is of a name, too
				}
				want := c.ExpectedResult()
				verdict := "refused"
				if err == nil {
					verdict = "accepted"
				}
				got[want.String()+" "+verdict]++
				switch {
				case err == nil && want == testcase.EXPECTED_RESULT_FAIL:
					t.Errorf("case %d: accepted, is to be refused: %+v", i, c)
				case err != nil && want == testcase.EXPECTED_RESULT_PASS:
					t.Errorf("case %d: %v, is to be accepted: %+v", i, err, c)
				}
				for _, kind := range []string{ca.Hub, ca.Device} {
					if l, err := ca.Verify(cert.Certificate, [][]byte{root.Raw}, kind, now); err == nil {
						t.Errorf("case %d: a leaf of ours: %+v", i, l)
					}
				}
			}
			t.Log(n, got)
		})
	}
}
