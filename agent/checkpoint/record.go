package checkpoint

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Record is the persistent state of one pod. Neither the record nor anything it points to may be
// changed after Put.
type Record struct {
	Pod     *corev1.Pod  // the last desired pod
	Verdict plan.Verdict // the admission result, one per UID
	Memory  plan.Memory
	Objects plan.Objects // objects used by a pod of the API server, for starts without a server
	BootID  string       // boot ID of the host when the record was written
	// OwnerMarked means that the release that wrote the record marks pod directories. Without it, the
	// record itself proves that berth created the pod.
	OwnerMarked bool
	History     // a nil part leaves the stored part unchanged
}

// Terminated reports whether the pod has succeeded or failed.
func (r Record) Terminated() bool {
	return r.Memory.Phase == corev1.PodSucceeded || r.Memory.Phase == corev1.PodFailed
}

// PodLookup returns a function that finds the pods of records by their UIDs. It does not keep the
// records.
func PodLookup(records map[types.UID]Record) func(types.UID) *corev1.Pod {
	pods := make(map[types.UID]*corev1.Pod, len(records))
	for uid, r := range records {
		pods[uid] = r.Pod
	}
	return func(uid types.UID) *corev1.Pod { return pods[uid] }
}

// UnmarkedPods returns the pods of records that a release without marks on pod directories has written.
func UnmarkedPods(records map[types.UID]Record) (uids []types.UID) {
	for uid, r := range records {
		if !r.OwnerMarked {
			uids = append(uids, uid)
		}
	}
	return uids
}

// History is what is reported about a pod, each part encoded by its owner. Pods do not depend on
// it, and it is written with a delay (see Store.PutHistory).
type History struct {
	Timeline []byte // events.Timeline; nil: none
	Events   []byte // events of the pod; nil: none
	Reported []byte // what the pod waits for and since when; nil: none
}

// The parts of a record, each a key of the pod's bucket. They change at different times and are
// written separately.
const (
	partPod      = "pod"
	partVerdict  = "verdict"
	partMemory   = "memory"
	partObjects  = "objects"
	partBoot     = "boot"
	partOwner    = "owner"
	partTimeline = "timeline"
	partEvents   = "events"
	partReported = "told"
)

// ownerMarked is the value of partOwner.
const ownerMarked = "marked"

// part is one encoded part of a record.
type part struct {
	key   string
	value []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// addChecksum prepends the checksum to b.
func addChecksum(b []byte) []byte {
	out := make([]byte, 4, 4+len(b))
	binary.BigEndian.PutUint32(out, crc32.Checksum(b, castagnoli))
	return append(out, b...)
}

// verifyChecksum verifies and removes the checksum. The result shares memory with b.
func verifyChecksum(b []byte) ([]byte, error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return nil, errors.New("checksum does not match")
	}
	return b[4:], nil
}

// objectJSON is one element of the encoded form of plan.Objects.
type objectJSON struct {
	Kind      plan.RefKind      `json:"kind"`
	Name      string            `json:"name"`
	Version   string            `json:"version,omitempty"`
	Missing   bool              `json:"missing,omitempty"`
	Err       string            `json:"error,omitempty"`
	ConfigMap *corev1.ConfigMap `json:"configMap,omitempty"`
	Secret    *corev1.Secret    `json:"secret,omitempty"`
	Token     string            `json:"token,omitempty"`
	Env       []corev1.EnvVar   `json:"env,omitempty"`
	Handler   string            `json:"handler,omitempty"`
	Trust     string            `json:"trustBundle,omitempty"`

	PodCertificate *plan.PodCertificate `json:"podCertificate,omitempty"`

	Volume *corev1.PersistentVolume `json:"volume,omitempty"`
}

func objectList(objects plan.Objects) []objectJSON {
	list := make([]objectJSON, 0, len(objects))
	for ref, o := range objects {
		if o.Pending { // not fetched yet
			continue
		}
		list = append(list, objectJSON{Kind: ref.Kind, Name: ref.Name, Version: o.Version.Version,
			Missing: o.Missing, Err: o.Err, ConfigMap: o.ConfigMap, Secret: o.Secret, Token: o.Token, Env: o.Env,
			Handler: o.Handler, Trust: o.TrustBundle, PodCertificate: o.PodCertificate,
			Volume: o.Volume})
	}
	slices.SortFunc(list, func(a, b objectJSON) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// sameObjects compares versions, which change with the content.
func sameObjects(a, b plan.Objects) bool {
	return maps.EqualFunc(a, b, func(x, y plan.Object) bool { return x.Version == y.Version })
}

func objectMap(list []objectJSON) plan.Objects {
	if len(list) == 0 {
		return nil
	}
	objects := make(plan.Objects, len(list))
	for _, o := range list {
		objects[plan.Ref{Kind: o.Kind, Name: o.Name}] = plan.Object{
			Version:   plan.Version{Version: o.Version, Missing: o.Missing, Err: o.Err},
			ConfigMap: o.ConfigMap, Secret: o.Secret, Token: o.Token, Env: o.Env, Handler: o.Handler,
			TrustBundle: o.Trust, PodCertificate: o.PodCertificate, Volume: o.Volume,
		}
	}
	return objects
}

// encode returns the parts of r that differ from before, the record last written for the pod, in a
// fixed order. A part without content has a nil value, and its key is deleted.
func encode(r, before Record) ([]part, error) {
	if r.Pod == nil {
		return nil, errors.New("record has no pod")
	}
	var parts []part
	for _, p := range []struct {
		key        string
		same, none bool
		v          func() any
	}{
		{partPod, r.Pod == before.Pod, false, func() any { return r.Pod }},
		{partVerdict, false, r.Verdict == plan.Verdict{}, func() any { return r.Verdict }},
		{partMemory, false, false, func() any { return r.Memory }},
		{partObjects, before.Pod != nil && sameObjects(r.Objects, before.Objects), len(r.Objects) == 0,
			func() any { return objectList(r.Objects) }},
		{partBoot, false, r.BootID == "", func() any { return r.BootID }},
		{partOwner, false, !r.OwnerMarked, func() any { return ownerMarked }},
	} {
		if p.same {
			continue
		}
		if p.none {
			parts = append(parts, part{key: p.key})
			continue
		}
		b, err := json.Marshal(p.v())
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", p.key, err)
		}
		parts = append(parts, part{p.key, addChecksum(b)})
	}
	return append(parts, r.History.parts()...), nil
}

// parts returns the encoded parts that are set.
func (s History) parts() (parts []part) {
	for _, p := range []part{{partTimeline, s.Timeline}, {partEvents, s.Events}, {partReported, s.Reported}} {
		if len(p.value) > 0 {
			parts = append(parts, part{p.key, addChecksum(p.value)})
		}
	}
	return parts
}

// decode decodes the parts of one pod. get returns nil for an absent part. All parts but the
// history must be valid, because an incomplete record could restart a terminated pod.
func decode(get func(key string) []byte) (Record, error) {
	var r Record
	var objects []objectJSON
	var owner string
	for _, p := range []struct {
		key  string
		into any
	}{
		{partPod, &r.Pod}, {partVerdict, &r.Verdict}, {partMemory, &r.Memory},
		{partObjects, &objects}, {partBoot, &r.BootID}, {partOwner, &owner},
	} {
		if err := decodePart(get(p.key), p.into); err != nil {
			return Record{}, fmt.Errorf("%s: %w", p.key, err)
		}
	}
	if r.Pod == nil {
		return Record{}, errors.New("pod: absent")
	}
	r.Objects, r.OwnerMarked = objectMap(objects), owner == ownerMarked
	r.History = History{
		Timeline: decodeText(get(partTimeline)),
		Events:   decodeText(get(partEvents)),
		Reported: decodeText(get(partReported)),
	}
	return r, nil
}

// decodeText returns a copy of a part of the history, or nil if it is absent or damaged.
func decodeText(raw []byte) []byte {
	if b, err := verifyChecksum(raw); err == nil {
		return slices.Clone(b)
	}
	return nil
}

func decodePart(raw []byte, into any) error {
	if raw == nil {
		return nil
	}
	b, err := verifyChecksum(raw)
	if err != nil {
		return err
	}
	if json.Unmarshal(b, into) != nil {
		return errors.New("cannot be decoded") // the decoder's error may quote a Secret
	}
	return nil
}
