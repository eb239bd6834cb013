package podspec

import (
	"strings"
	"testing"
)

func TestBandwidthAnnotations(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"1k": "", "10M": "", "1P": "", "1Gi": "", "1000": "", "1500.5k": "",
		"999":  "must be between 1k and 1P bits per second",
		"2P":   "must be between 1k and 1P bits per second",
		"-1M":  "must be between 1k and 1P bits per second",
		"":     "must be a quantity of bits per second, such as 10M",
		"fast": "must be a quantity of bits per second, such as 10M",
	} {
		for _, key := range []string{IngressBandwidth, EgressBandwidth} {
			pod := podOf(t, `containers: [{name: c, image: i}]`)
			pod.Annotations = map[string]string{key: value}
			errs := Validate(pod)
			switch {
			case want == "" && len(errs) > 0:
				t.Errorf("%s %q: %v", key, value, errs)
			case want != "" && (len(errs) != 1 || errs[0].Field != "metadata.annotations["+key+"]" ||
				!strings.Contains(errs[0].Detail, want)):
				t.Errorf("%s %q: %v, want %s", key, value, errs, want)
			}
			if errs := ValidateStored(pod); len(errs) > 0 {
				t.Errorf("%s %q: an API server rejects %v", key, value, errs)
			}
		}
	}
}
