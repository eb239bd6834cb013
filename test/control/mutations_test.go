package control

import (
	"testing"

	"berth/test/mutations"
)

// TestSameJudgementAsKubernetes sends the recorded mutations of valid objects of all kinds. The server must give the
// recorded answers of kube-apiserver: the verdict, the fields and reasons of a rejection, and the stored object. See
// docs/contributing/mutations.md for how to record them.
func TestSameJudgementAsKubernetes(t *testing.T) {
	t.Parallel()
	s := Start(t, withoutControllers)
	count, different, err := mutations.Replay(t.Context(), s.Config)
	if err != nil {
		t.Fatal(err)
	}
	if count < 1900 {
		t.Errorf("%d recorded mutations, want at least 1900", count)
	}
	const most = 20
	for i, text := range different {
		if i == most {
			t.Errorf("and %d more", len(different)-most)
			break
		}
		t.Error(text)
	}
}
