package csi

import (
	"slices"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
)

// TestVolumeHealth checks the health of a volume of a running pod without a request for statistics.
func TestVolumeHealth(t *testing.T) {
	t.Parallel()
	d := newFakeNode(csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, volumeCondition)
	d.condition = &Condition{Abnormal: true, Message: "disk is failing"}
	h := newHost(t, d, csiDriver(nil))
	h.opt.StatsAge = 10 * time.Millisecond
	h.register()
	pod := testPod("one")
	h.mu.Lock()
	h.pods = []*corev1.Pod{pod}
	h.mu.Unlock()
	if err := h.setUp(pod, testVolume("pv")); err != nil {
		t.Fatal(err)
	}
	const want = "pod-one  Warning VolumeConditionAbnormal: Volume name of pv: disk is failing"
	eventually(t, "the event", func() bool { return slices.Contains(h.eventTexts(), want) })
	eventually(t, "the statistics", func() bool {
		s, ok := h.Stats("one", "pv")
		return ok && s.Condition != nil && s.Condition.Abnormal && s.Capacity == 1000
	})
	d.mu.Lock()
	d.condition = &Condition{Message: "healthy"}
	d.mu.Unlock()
	eventually(t, "the recovery", func() bool {
		s, _ := h.Stats("one", "pv")
		return s.Condition != nil && !s.Condition.Abnormal
	})
	before := len(h.eventTexts())
	eventually(t, "another measurement", func() bool {
		n := d.count("NodeGetVolumeStats")
		time.Sleep(30 * time.Millisecond)
		_, _ = h.Stats("one", "pv")
		return d.count("NodeGetVolumeStats") > n
	})
	if got := h.eventTexts(); len(got) != before {
		t.Errorf("got events %q for a healthy volume", got[before:])
	}
}

// setCondition adds the health of a volume to a response, as drivers encode it.
func setCondition(r *csipb.NodeGetVolumeStatsResponse, c *Condition) {
	if c == nil {
		return
	}
	var text []byte
	if c.Abnormal {
		text = protowire.AppendVarint(protowire.AppendTag(text, 1, protowire.VarintType), 1)
	}
	text = protowire.AppendString(protowire.AppendTag(text, 2, protowire.BytesType), c.Message)
	all := protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 7) // another field
	all = protowire.AppendBytes(protowire.AppendTag(all, conditionField, protowire.BytesType), text)
	r.ProtoReflect().SetUnknown(all)
}

func TestConditionOf(t *testing.T) {
	t.Parallel()
	r := &csipb.NodeGetVolumeStatsResponse{}
	setCondition(r, &Condition{Abnormal: true, Message: "x"})
	if c := conditionOf(r, capabilities{volumeCondition: true}); c == nil || !c.Abnormal || c.Message != "x" {
		t.Errorf("got %v", c)
	}
	if c := conditionOf(r, capabilities{}); c != nil {
		t.Errorf("got %v of a driver without the capability", c)
	}
	r.ProtoReflect().SetUnknown([]byte{0x12, 0x7f, 0x01})
	if c := conditionOf(r, capabilities{volumeCondition: true}); c != nil {
		t.Errorf("got %v of a response that is not valid", c)
	}
	if c := conditionOf(&csipb.NodeGetVolumeStatsResponse{}, capabilities{volumeCondition: true}); c != nil {
		t.Errorf("got %v of a response without it", c)
	}
}
