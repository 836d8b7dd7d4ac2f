// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// State is how far an unpack pod is.
type State string

const (
	// Waiting means that the program does not run yet.
	Waiting State = "Waiting"
	// Running means that it runs.
	Running State = "Running"
	// Succeeded means that it has ended well: the server took the content.
	Succeeded State = "Succeeded"
	// Failed means that it has failed or will never run.
	Failed State = "Failed"
)

// Outcome is what a pod's status says about its attempt.
type Outcome struct {
	State State
	// Reason and Message say why the pod waits, when that is out of the ordinary, or
	// why it failed. They stay the same while the cause does, whatever the kubelet
	// counts or measures in its own messages.
	Reason, Message string
	// Failing means, of a pod that waits, that something has failed and the node
	// tries it again, so that it is not worth waiting long.
	Failing bool
}

// maxMessage bounds the messages of an Outcome, in bytes.
const maxMessage = 1024

// Judge reads a pod. It goes by the statuses of our own containers rather than by the
// phase of the pod, since an injected sidecar can keep a pod running for ever.
func Judge(pod *corev1.Pod) Outcome {
	main := statusOf(pod.Status.ContainerStatuses, ContainerUnpack)
	if main != nil && main.State.Terminated != nil && main.State.Terminated.ExitCode == 0 {
		return Outcome{State: Succeeded}
	}
	return judgeBy(pod, main, judgeContainer)
}

// judgeBy reads a pod whose work is that of a main container, if it has a status yet, which judge reads.
func judgeBy(pod *corev1.Pod, main *corev1.ContainerStatus, judge func(*corev1.ContainerStatus) (Outcome, bool)) Outcome {
	if o, ok := judgePod(pod); ok {
		return o
	}
	if s := statusOf(pod.Status.InitContainerStatuses, ContainerInstall); s != nil {
		if o, ok := judgeContainer(s); ok {
			return o
		}
	}
	if main != nil {
		if o, ok := judge(main); ok {
			return o
		}
		if main.State.Running != nil {
			return Outcome{State: Running}
		}
	}
	// Phase Failed without a word about a container of ours.
	if pod.Status.Phase == corev1.PodFailed {
		return failed(v1alpha1.ReasonPodFailed, "the pod failed", pod.Status.Message)
	}
	return judgeScheduling(pod)
}

// judgePod reads what a node, or whoever disrupts a pod, says about it as a whole.
func judgePod(pod *corev1.Pod) (Outcome, bool) {
	if o, ok := Disrupted(pod); ok {
		return o, true
	}
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" {
		if pod.Status.Reason == "DeadlineExceeded" {
			return failed(v1alpha1.ReasonDeadlineExceeded, "the attempt took too long", lastReport(pod)), true
		}
		return failed(v1alpha1.ReasonPodFailed, "the node refused the pod: "+pod.Status.Reason, pod.Status.Message), true
	}
	if pod.DeletionTimestamp != nil {
		return failed(v1alpha1.ReasonPodDeleted, "the pod was deleted before it was done", ""), true
	}
	return Outcome{}, false
}

// lastReport is what the program said before it was ended.
func lastReport(pod *corev1.Pod) string {
	s := statusOf(pod.Status.ContainerStatuses, ContainerUnpack)
	if s == nil || s.State.Terminated == nil {
		return ""
	}
	r, err := contract.ParseReport(s.State.Terminated.Message)
	if err != nil {
		return ""
	}
	return r.Message
}

func judgeScheduling(pod *corev1.Pod) Outcome {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return Outcome{State: Waiting, Reason: v1alpha1.ReasonUnschedulable, Message: Words("no node takes the pod", c.Message)}
		}
	}
	return Outcome{State: Waiting}
}

// judgeContainer returns false while there is nothing wrong with a container.
func judgeContainer(s *corev1.ContainerStatus) (Outcome, bool) {
	if t := s.State.Terminated; t != nil && (t.ExitCode != 0 || t.Reason == "OOMKilled") {
		return judgeTerminated(s.Name, t), true
	}
	if w := s.State.Waiting; w != nil {
		return judgeWaiting(s.Name, w)
	}
	return Outcome{}, false
}

func judgeTerminated(name string, t *corev1.ContainerStateTerminated) Outcome {
	if t.Reason == "OOMKilled" || noMemoryToStart(t.Message) {
		return outOfMemory(name)
	}
	if r, err := contract.ParseReport(t.Message); err == nil && name == ContainerUnpack {
		return Outcome{State: Failed, Reason: reported(r.Reason), Message: Words(r.Message, "")}
	}
	switch t.Reason {
	case "ContainerCannotRun", "StartError", "ContainerStatusUnknown":
		return failed(v1alpha1.ReasonContainerFailed, fmt.Sprintf("container %s could not be run", name), t.Message)
	}
	return failed(v1alpha1.ReasonContainerFailed, fmt.Sprintf("container %s ended with exit code %d", name, t.ExitCode), t.Message)
}

// reported takes over the reasons that the program is known to give.
func reported(reason string) string {
	switch reason {
	case contract.ReasonContentRefused, contract.ReasonLimitExceeded, contract.ReasonContentUnreadable,
		contract.ReasonImageEmpty, contract.ReasonServerUnreachable, contract.ReasonUploadFailed,
		contract.ReasonContentQuotaExceeded, contract.ReasonInvalidConfiguration:
		return reason
	}
	return v1alpha1.ReasonContainerFailed
}

// throttled is what a kubelet says, at once, later, and in an event, when it has pulled as many images as its registryPullQPS allows. It tries again. Registries
// have their words in what else it says.
var throttled = regexp.MustCompile(`^((Back-off pulling|Failed to pull) image "[^"]*": (ErrImagePull: )?)?pull QPS exceeded$`)

func judgeWaiting(name string, w *corev1.ContainerStateWaiting) (Outcome, bool) {
	failing := Outcome{State: Waiting, Failing: true}
	switch w.Reason {
	case "", "ContainerCreating", "PodInitializing":
		return Outcome{}, false
	case "InvalidImageName":
		return failed(v1alpha1.ReasonInvalidImageReference, "the node cannot read the image's name", w.Message), true
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed", "ImageInspectError":
		if throttled.MatchString(w.Message) {
			return Outcome{State: Waiting, Reason: v1alpha1.ReasonImagePullThrottled, Message: "the node pulls no more images for the moment"}, true
		}
		failing.Reason, failing.Message = judgePull(w.Message)
	case "ErrImageNeverPull":
		failing.Reason = v1alpha1.ReasonImageNotFound
		failing.Message = Words("pullPolicy is Never and the image is not on the node", w.Message)
	case "CreateContainerError", "RunContainerError", "CreateContainerConfigError":
		if noMemoryToStart(w.Message) {
			return outOfMemory(name), true
		}
		failing.Reason, failing.Message = judgeStart(name, w.Message)
	default:
		failing.Reason = v1alpha1.ReasonContainerFailed
		failing.Message = Words(fmt.Sprintf("container %s waits: %s", name, w.Reason), w.Message)
	}
	return failing, true
}

func statusOf(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

func failed(reason, what, detail string) Outcome {
	return Outcome{State: Failed, Reason: reason, Message: Words(what, detail)}
}

// What changes from one message to the next although nothing has happened, or says nothing.
var (
	backOff   = regexp.MustCompile(`(?i)back-off [0-9hms.]+ `)
	requestID = regexp.MustCompile(`(?i)(request ?id|trace ?id)[=: ]+"?[0-9a-z-]{8,}"?`)
	rpcPrefix = regexp.MustCompile(`rpc error: code = \w+ desc = `)
	runtimeID = regexp.MustCompile(`(sandbox|container) "[0-9a-f]{64}"`)
	ports     = regexp.MustCompile(`(\d+\.\d+\.\d+\.\d+|\]):(\d+)->`)
)

// Words joins what happened and the detail that somebody else gives, made steady,
// bounded and fit for one line.
func Words(what, detail string) string {
	detail = backOff.ReplaceAllString(detail, "back-off ")
	detail = requestID.ReplaceAllString(detail, "$1")
	detail = runtimeID.ReplaceAllString(detail, "$1")
	detail = rpcPrefix.ReplaceAllString(detail, "")
	detail = ports.ReplaceAllString(detail, "$1->")
	detail = strings.Join(strings.FieldsFunc(detail, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	if detail != "" {
		what += ": " + detail
	}
	return contract.Shorten(strings.ToValidUTF8(what, "?"), maxMessage)
}
