package differential

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"berth/test/simnodes"
)

// Images of containers. They decide what the simulated nodes report.
const (
	imageServe   = "serve:1"   // runs and is ready
	imageServe2  = "serve:2"   // the same
	imageServe3  = "serve:3"   // the same
	imageBroken  = "broken:1"  // runs and never becomes ready
	imageSucceed = "succeed:1" // exits with 0
	imageFail    = "fail:1"    // exits with 1
	imageFailOne = "failone:1" // exits with 1 in the pod of index 1, otherwise with 0

	imageFailFirst   = "failfirst:1"   // exits with 1 in the first pod of an index, otherwise with 0
	imageSucceedZero = "succeedzero:1" // exits with 0 in the pod of index 0, otherwise runs and is ready
)

// nodes is the number of Nodes of each control plane.
const nodes = 3

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// simulatedNodes returns the nodes of one control plane.
func simulatedNodes(client kubernetes.Interface, factory informers.SharedInformerFactory) (*simnodes.Nodes, error) {
	names, disks := make([]string, nodes), map[string]string{}
	for i := range nodes {
		names[i] = nodeName(i)
		disks[names[i]] = []string{"ssd", "hdd"}[i%2]
	}
	return simnodes.New(client, factory.Core().V1().Pods(), simnodes.Options{Names: names, Report: report,
		Labels: func(name string) map[string]string { return map[string]string{"disk": disks[name]} }})
}

// report sets the status of a pod as its image says.
func report(pod *corev1.Pod) {
	switch pod.Spec.Containers[0].Image {
	case imageSucceed:
		simnodes.Succeed(pod)
	case imageFail:
		simnodes.Fail(pod)
	case imageFailOne:
		if pod.Annotations["batch.kubernetes.io/job-completion-index"] == "1" {
			simnodes.Fail(pod)
			return
		}
		simnodes.Succeed(pod)
	case imageFailFirst:
		if pod.Annotations["batch.kubernetes.io/job-index-failure-count"] == "0" {
			simnodes.Fail(pod)
			return
		}
		simnodes.Succeed(pod)
	case imageSucceedZero:
		if pod.Annotations["batch.kubernetes.io/job-completion-index"] == "0" {
			simnodes.Succeed(pod)
			return
		}
		simnodes.Serve(pod)
	case imageBroken:
		simnodes.ServeUnready(pod)
	default:
		simnodes.Serve(pod)
	}
}
