package selection

import (
	"maps"
	"slices"
	"strings"
	"unique"
)

// Labels are the labels of a pod or namespace in compact form, sorted by key. They implement
// labels.Labels of apimachinery.
type Labels []label

type label struct{ key, value unique.Handle[string] }

// MakeLabels returns the compact form of labels. Equal keys and values share their memory.
func MakeLabels(from map[string]string) Labels {
	if len(from) == 0 {
		return nil
	}
	out := make(Labels, 0, len(from))
	for _, key := range slices.Sorted(maps.Keys(from)) {
		out = append(out, label{unique.Make(key), unique.Make(from[key])})
	}
	return out
}

// Lookup returns the value of a label and whether it exists.
func (l Labels) Lookup(key string) (value string, exists bool) {
	at, found := slices.BinarySearchFunc(l, key, func(x label, key string) int {
		return strings.Compare(x.key.Value(), key)
	})
	if !found {
		return "", false
	}
	return l[at].value.Value(), true
}

// Has reports whether a label exists.
func (l Labels) Has(key string) bool {
	_, exists := l.Lookup(key)
	return exists
}

// Get returns the value of a label, or an empty string.
func (l Labels) Get(key string) string {
	value, _ := l.Lookup(key)
	return value
}

func (l Labels) equal(m Labels) bool { return slices.Equal(l, m) }
