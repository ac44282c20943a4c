// Runs memory hooks in opencode: adds the session block and the memories for each message to the prompt. With CAPTURE,
// it also captures the conversation. If the command is missing or slow, opencode continues without the memory.
import { spawn } from "node:child_process"

const DEADLINE = { "session-start": 10_000, "user-prompt": 5_000 } // milliseconds
const OTHERS = 10_000

/** Runs `memory hook EVENT` with the event on its standard input; returns the context that it prints, or "". */
function hook(event, given, capture = true) {
  return new Promise((resolve) => {
    let said = ""
    let child
    try {
      const options = capture ? OPTIONS : OPTIONS.filter((each) => each !== "--capture")
      child = spawn(COMMAND[0], [...COMMAND.slice(1), "hook", event, "--host", "opencode", ...options], {
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

export const MemoriesPlugin = async ({ client, directory }) => {
  const sessions = new Map() // by id: the session block, the last message, and the memories recalled for that message

  const about = (id) => ({ session_id: id, cwd: directory })

  async function session(id) {
    if (!sessions.has(id)) {
      const known = hook("session-start", { ...about(id), source: "startup" })
      sessions.set(id, { known, recalled: "", prompt: "", captured: CAPTURE && isOfPerson(id) })
    }
    return sessions.get(id)
  }

  /** Returns whether a person talks in a session; in a child session, an agent talks to another agent. */
  async function isOfPerson(id) {
    try {
      const { data } = await client.session.get({ path: { id } })
      return !data?.parentID
    } catch {
      return true
    }
  }

  async function lastAnswer(id) {
    try {
      const { data } = await client.session.messages({ path: { id } })
      const answers = (data ?? []).filter((each) => each.info.role === "assistant")
      const last = answers.at(-1)
      return last ? { text: textOf(last.parts), id: last.info.id } : { text: "", id: "" }
    } catch {
      return { text: "", id: "" }
    }
  }

  return {
    "chat.message": async (input, output) => {
      const here = await session(input.sessionID)
      here.prompt = textOf(output.parts)
      const given = { ...about(input.sessionID), prompt: here.prompt, turn_id: output.message?.id }
      await here.known // once it is recorded, the prompt recalls nothing that it shows
      here.recalled = await hook("user-prompt", given, await here.captured)
    },
    "experimental.chat.system.transform": async (input, output) => {
      const here = input.sessionID && sessions.get(input.sessionID)
      if (!here) return
      for (const text of [await here.known, here.recalled]) if (text) output.system.push(text)
    },
    "experimental.session.compacting": async (input) => {
      const here = sessions.get(input.sessionID)
      if (await here?.captured) await hook("pre-compact", { ...about(input.sessionID), trigger: "auto" })
    },
    event: async ({ event }) => {
      const id = event.properties?.sessionID ?? event.properties?.info?.id
      const here = id && sessions.get(id)
      if (!here) return
      if (event.type === "session.compacted") {
        here.known = hook("session-start", { ...about(id), source: "compact" })
      } else if (event.type === "session.deleted") {
        sessions.delete(id)
        if (await here.captured) await hook("session-end", { ...about(id), reason: "other" })
      } else if (event.type === "session.idle" && (await here.captured)) {
        const answer = await lastAnswer(id)
        const given = { prompt: here.prompt, last_assistant_message: answer.text, turn_id: answer.id }
        await hook("stop", { ...about(id), ...given })
      }
    },
    dispose: async () => {
      const ends = async ([id, here]) => (await here.captured) && hook("session-end", { ...about(id), reason: "exit" })
      await Promise.all([...sessions].map(ends))
    },
  }
}
