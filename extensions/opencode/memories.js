const COMMAND = ["memoriae"]
const CAPTURE = /^(1|true|yes|on)$/.test(process.env.MEMORY_CAPTURE ?? "")
const OPTIONS = CAPTURE ? ["--capture"] : []

// Runs memory hooks in opencode: adds the session block and the memories for each message to the prompt. With CAPTURE,
// it also captures the conversation. If the command is missing or slow, opencode continues without the memory. Sessions
// with a parent belong to subagents and run no hooks.
import { spawn } from "node:child_process"

const DEADLINE = { "session-start": 10_000, "user-prompt": 5_000 } // milliseconds
const OTHERS = 10_000
// The start of the system prompts with which opencode asks for a session's title or summary; these need no memory.
const NO_MEMORY = /^You are a (title generator|context summarization agent)/

/** Runs `memory hook EVENT` with the event on its standard input; returns the context that it prints, or "". */
function hook(event, given) {
  return new Promise((resolve) => {
    let said = ""
    let child
    try {
      child = spawn(COMMAND[0], [...COMMAND.slice(1), "hook", event, "--host", "opencode", ...OPTIONS], {
        stdio: ["pipe", "pipe", "ignore"],
        windowsHide: true,
      })
    } catch {
      return resolve("")
    }
    const timer = setTimeout(() => {
      child.kill()
      resolve("")
    }, DEADLINE[event] ?? OTHERS)
    const end = (text) => {
      clearTimeout(timer)
      resolve(text)
    }
    child.on("error", () => end(""))
    child.stdin.on("error", () => {})
    child.stdout.setEncoding("utf8")
    child.stdout.on("data", (text) => (said += text))
    child.on("close", () => end(context(said)))
    child.stdin.end(JSON.stringify({ hook_event_name: event, ...given }))
  })
}

/** Returns the context in a hook's output. */
function context(said) {
  try {
    return JSON.parse(said).hookSpecificOutput?.additionalContext ?? ""
  } catch {
    return ""
  }
}

function textOf(parts) {
  return parts
    .filter((part) => part.type === "text" && !part.synthetic)
    .map((part) => part.text)
    .join("\n")
}

/** Returns a message without the quotes that `opencode run` puts around an argument with spaces. */
function unquoted(text) {
  for (const argument of process.argv) {
    const quoted = `"${argument.replaceAll('"', '\\"')}"`
    if (text.startsWith(quoted)) return argument + text.slice(quoted.length)
  }
  return text
}

export const MemoriesPlugin = async ({ client, directory }) => {
  const sessions = new Map() // by id: the session block, everything recalled since then, and the last message

  const about = (id) => ({ session_id: id, cwd: directory })

  /** Returns a session, which starts with its first message; undefined for a subagent's session. */
  async function session(id, turn) {
    if (!sessions.has(id) && !(await hasParent(id))) {
      // opencode stores no system prompt, so a continued session has lost what was recalled in an earlier process.
      const known = hook("session-start", { ...about(id), source: "clear", turn_id: turn })
      sessions.set(id, { known, recalled: [], prompt: "" })
    }
    return sessions.get(id)
  }

  async function hasParent(id) {
    try {
      const { data } = await client.session.get({ path: { id } })
      return Boolean(data?.parentID)
    } catch {
      return false
    }
  }

  async function lastAnswer(id) {
    try {
      const { data } = await client.session.messages({ path: { id } })
      const answers = (data ?? []).filter(({ info }) => info.role === "assistant" && !info.summary)
      const last = answers.at(-1)
      return last ? { text: textOf(last.parts), id: last.info.id } : { text: "", id: "" }
    } catch {
      return { text: "", id: "" }
    }
  }

  return {
    "chat.message": async (input, output) => {
      const here = await session(input.sessionID, output.message?.id)
      if (!here) return
      here.prompt = unquoted(textOf(output.parts))
      const given = { ...about(input.sessionID), prompt: here.prompt, turn_id: output.message?.id }
      await here.known // once it is recorded, the prompt recalls nothing that it shows
      here.recalled.push(await hook("user-prompt", given))
    },
    "experimental.chat.system.transform": async (input, output) => {
      const here = input.sessionID && sessions.get(input.sessionID)
      if (!here || NO_MEMORY.test(output.system[0])) return
      for (const text of [await here.known, ...here.recalled]) if (text) output.system.push(text)
    },
    "experimental.session.compacting": async (input) => {
      if (CAPTURE && sessions.has(input.sessionID)) await hook("pre-compact", { ...about(input.sessionID), trigger: "auto" })
    },
    event: async ({ event }) => {
      const id = event.properties?.sessionID ?? event.properties?.info?.id
      const here = id && sessions.get(id)
      if (!here) return
      if (event.type === "session.compacted") {
        here.known = hook("session-start", { ...about(id), source: "compact" })
        here.recalled = []
      } else if (event.type === "session.deleted") {
        sessions.delete(id)
        if (CAPTURE) await hook("session-end", { ...about(id), reason: "other" })
      } else if (event.type === "session.idle" && CAPTURE) {
        const answer = await lastAnswer(id)
        const given = { prompt: here.prompt, last_assistant_message: answer.text, turn_id: answer.id }
        await hook("stop", { ...about(id), ...given })
      }
    },
    dispose: async () => {
      const ends = (id) => hook("session-end", { ...about(id), reason: "exit" })
      if (CAPTURE) await Promise.all([...sessions.keys()].map(ends))
    },
  }
}
