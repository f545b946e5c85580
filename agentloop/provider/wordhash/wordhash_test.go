package wordhash

import (
	"fmt"
	"math"
	"testing"
)

func cosine(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// TestVector: vectors have the length 1, and other forms of a word are nearer than other words.
func TestVector(t *testing.T) {
	of := func(text string) []float64 { return Vector(Words(text), Dimensions) }
	if n := cosine(of("Releases"), of("releases")); math.Abs(n-1) > 1e-9 {
		t.Errorf("a length of %v", n)
	}
	if near, far := cosine(of("releases"), of("released")), cosine(of("releases"), of("cucumber")); near <= far {
		t.Errorf("near %v, far %v", near, far)
	}
	for _, x := range of(" ,.") {
		if x != 0 {
			t.Errorf("without words: %v", x)
		}
	}
	if v := Vector(Words("a b c"), 4096); len(v) != 4096 {
		t.Errorf("%d dimensions", len(v))
	}
}

func ExampleVector() {
	fmt.Printf("%.3f\n", Vector(Words("hello"), 4))
	// Output: [-0.756 -0.378 -0.378 -0.378]
}
